"""What-if questions as text, `name=value`, and what each does to a model, a machine or a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ridgeline.errors import ConfigError
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.perf.hardware import HardwareProfile, Source
from ridgeline.perf.hardware_table import find_hardware
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.step_shape import StepShape

KV_ITEMSIZES: Mapping[str, int] = MappingProxyType(
    {"f32": 4, "fp32": 4, "f16": 2, "fp16": 2, "bf16": 2, "int8": 1, "fp8": 1}
)
"""Bytes of an element of K or V by type."""
WEIGHT_ALIASES: Mapping[str, str] = MappingProxyType({"FP32": "F32", "FP16": "F16"})
MAX_COUNT = 1 << 20
_RATE_UNITS = {"TB/s": 1e12, "GB/s": 1e9, "MB/s": 1e6}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A step of a model on a machine."""

    model: ModelShape
    profile: HardwareProfile
    step: StepShape


@dataclass(frozen=True, slots=True)
class Change:
    """One question: `text` as it was asked, and the scenario that it makes of another.

    `can_run` says that it needs no other machine and no format that the engine lacks: it can be tried.
    """

    name: str
    text: str
    apply: Callable[[Scenario], Scenario]
    can_run: bool


def parse_changes(texts: Sequence[str]) -> tuple[Change, ...]:
    """Questions in the order they take effect: model, step, machine by name, what differs of the machine.

    Raises:
        ConfigError: no `name=value`, an unknown name, the same name twice, a value that can't be.
    """
    found: dict[str, Change] = {}
    for text in texts:
        name, is_pair, value = text.strip().partition("=")
        name = name.strip().lower().replace("-", "_")
        if not is_pair or name not in _PARSERS:
            example = "weights=q4_0, batch=64 or bandwidth=2x"
            raise ConfigError("what_if", text, f"must be name=value with {_known()}, as {example}")
        if name in found:
            raise ConfigError("what_if", text, f"{name} is asked twice; ask it once")
        apply = _PARSERS[name](value.strip())
        found[name] = Change(name, f"{name}={value.strip()}", apply, name in _RUNNABLE)
    return tuple(found[name] for name in _PARSERS if name in found)


def _known() -> str:
    return ", ".join(_PARSERS)


_Apply = Callable[[Scenario], Scenario]


def _kv_dtype(value: str) -> _Apply:
    itemsize = KV_ITEMSIZES.get(value.lower())
    if itemsize is None:
        raise ConfigError("kv_dtype", value, f"must be one of {', '.join(KV_ITEMSIZES)}")
    return lambda at: replace(at, model=replace(at.model, kv_itemsize=itemsize))


def _weights(value: str) -> _Apply:
    quant_type = WEIGHT_ALIASES.get(value.upper(), value.upper())
    if quant_type not in QUANT_TYPES:
        raise ConfigError("weights", value, f"must be one of {', '.join(QUANT_TYPES).lower()}")
    return lambda at: replace(at, model=at.model.with_weights(quant_type))


def _batch(value: str) -> _Apply:
    amount = _amount("batch", value, least=1)

    def apply(at: Scenario) -> Scenario:
        num_rows = _count("batch", value, amount(len(at.step.rows)))
        rows = [at.step.rows[index % len(at.step.rows)] for index in range(num_rows)]
        return replace(at, step=StepShape(rows))

    return apply


def _context(value: str) -> _Apply:
    amount = _amount("context", value, least=0)

    def apply(at: Scenario) -> Scenario:
        rows = [
            row._replace(num_computed_tokens=_count("context", value, amount(row.num_computed_tokens)))
            for row in at.step.rows
        ]
        return replace(at, step=StepShape(rows))

    return apply


def _bandwidth(value: str) -> _Apply:
    unit = next((each for each in _RATE_UNITS if value.lower().endswith(each.lower())), None)
    if unit is None and not value.lower().endswith("x"):
        raise ConfigError("bandwidth", value, "must be a factor as 2x, or a rate as 800GB/s")
    rate = _positive("bandwidth", value[: -len(unit)]) * _RATE_UNITS[unit] if unit else None
    factor = _factor("bandwidth", value) if unit is None else None

    def apply(at: Scenario) -> Scenario:
        dram = rate if rate is not None else at.profile.dram_bytes_per_s * (factor or 1.0)
        return replace(at, profile=replace(at.profile, dram_bytes_per_s=dram))

    return apply


def _compute(value: str) -> _Apply:
    factor = _factor("compute", value)
    return lambda at: replace(at, profile=_with_compute(at.profile, factor))


def _hardware(value: str) -> _Apply:
    profile = find_hardware(value).profile()
    return lambda at: replace(at, profile=profile)


def _threads(value: str) -> _Apply:
    amount = _amount("threads", value, least=1)

    def apply(at: Scenario) -> Scenario:
        profile = at.profile
        num_threads = _count("threads", value, amount(profile.num_threads))
        if profile.source is Source.DATA_SHEET:
            raise ConfigError("threads", value, "only a measured machine has threads; leave it out")
        rate = profile.dram_bytes_per_s_by_threads.get(num_threads)
        if rate is None:
            measured = ", ".join(map(str, sorted(profile.dram_bytes_per_s_by_threads))) or "none"
            remedy = f"bandwidth is known for {measured}; `ridgeline calibrate --threads {num_threads}`"
            raise ConfigError("threads", value, remedy)
        share = num_threads / profile.num_threads
        caches = [replace(c, read_bytes_per_s=c.read_bytes_per_s * share) for c in profile.caches]
        scaled = replace(
            _with_compute(profile, share), num_threads=num_threads, dram_bytes_per_s=rate, caches=caches
        )
        return replace(at, profile=scaled)

    return apply


_PARSERS: Mapping[str, Callable[[str], _Apply]] = {
    "weights": _weights,
    "kv_dtype": _kv_dtype,
    "batch": _batch,
    "context": _context,
    "hardware": _hardware,
    "threads": _threads,
    "bandwidth": _bandwidth,
    "compute": _compute,
}
_RUNNABLE = ("weights", "batch", "context", "threads")


def _with_compute(profile: HardwareProfile, factor: float) -> HardwareProfile:
    """All arithmetic faster by `factor`."""
    return replace(
        profile,
        matmul_flops_per_s={
            name: tuple((count, rate * factor) for count, rate in points)
            for name, points in profile.matmul_flops_per_s.items()
        },
        attention_flops_per_s=profile.attention_flops_per_s * factor,
    )


def _amount(field: str, value: str, *, least: int) -> Callable[[int], float]:
    """A whole number, or a factor on what there is."""
    if value.lower().endswith("x"):
        factor = _factor(field, value)
        return lambda before: before * factor
    if not value.isascii() or not value.isdigit() or not least <= int(value) <= MAX_COUNT:
        raise ConfigError(field, value, f"must be a whole number in {least}…{MAX_COUNT}, or a factor as 2x")
    return lambda _: int(value)


def _count(field: str, value: str, amount: float) -> int:
    if not 0 <= amount <= MAX_COUNT:
        raise ConfigError(field, value, f"would make {amount:.3g}, more than {MAX_COUNT}")
    return max(round(amount), 0 if field == "context" else 1)


def _factor(field: str, value: str) -> float:
    if not value.lower().endswith("x"):
        raise ConfigError(field, value, "must be a factor as 2x")
    return _positive(field, value[:-1])


def _positive(field: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(field, text, "must be a number above 0")
    return number
