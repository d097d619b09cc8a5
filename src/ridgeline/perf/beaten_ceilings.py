"""A ceiling that real work beats was measured too low: raise it, and say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.op_bounds import MATRIX_OPS, OpBounds
from ridgeline.perf.step_shape import StepShape

_TOLERANCE = 1.02
_LEAST_S = 1e-4


class BeatenCeiling(NamedTuple):
    """Real work of `op` went `factor` times as fast as `ceiling` (of the profile's spread names) allows."""

    ceiling: str
    op: str
    factor: float


def beaten_ceilings(
    bounds: OpBounds, step: StepShape, op_seconds: Mapping[str, float]
) -> list[BeatenCeiling]:
    """Ceilings that one step's ops beat by more than 2 %; ops below 0.1 ms are no evidence."""
    beaten = []
    for op, (bound_s, ceiling) in bounds.with_ceilings(step).items():
        seconds = op_seconds.get(op, 0.0)
        if (op in MATRIX_OPS or op == "attention") and seconds >= _LEAST_S and bound_s > _TOLERANCE * seconds:
            beaten.append(BeatenCeiling(ceiling, op, bound_s / seconds))
    return beaten


def raised(profile: HardwareProfile, beaten: Sequence[BeatenCeiling]) -> HardwareProfile:
    """The profile with each beaten ceiling raised by the largest of its factors, and the note of it."""
    best: dict[str, BeatenCeiling] = {}
    for each in beaten:
        if each.ceiling not in best or each.factor > best[each.ceiling].factor:
            best[each.ceiling] = each
    for each in best.values():
        head = f"{each.ceiling} raised by "
        note = f"{head}{each.factor - 1:.0%}: {each.op} of a real step went faster"
        earlier = [other for other in profile.notes if not other.startswith(head)]
        profile = replace(_raise(profile, each.ceiling, each.factor), notes=(*earlier, note))
    return profile


def raised_by_work(
    model: ModelShape, profile: HardwareProfile, work: Sequence[tuple[StepShape, Mapping[str, float]]]
) -> HardwareProfile:
    """The profile when none of its ceilings is beaten by (step, seconds by op) of `work` any more.

    An op that beats its memory may beat its arithmetic, too, which shows once memory binds it no longer.
    Where nothing was beaten it is the profile itself.
    """
    while True:
        bounds = OpBounds(model, profile)
        beaten = [each for step, op_seconds in work for each in beaten_ceilings(bounds, step, op_seconds)]
        if not beaten:
            return profile
        profile = raised(profile, beaten)


def _raise(profile: HardwareProfile, ceiling: str, factor: float) -> HardwareProfile:
    if ceiling == "dram":
        by_threads = dict(profile.dram_bytes_per_s_by_threads)
        rate = profile.dram_bytes_per_s * factor
        if profile.num_threads in by_threads:
            by_threads[profile.num_threads] = rate
        return replace(profile, dram_bytes_per_s=rate, dram_bytes_per_s_by_threads=by_threads)
    if ceiling == "attention":
        return replace(profile, attention_flops_per_s=profile.attention_flops_per_s * factor)
    if ceiling.startswith("matmul "):
        curves = dict(profile.matmul_flops_per_s)
        name = ceiling.removeprefix("matmul ")
        curves[name] = tuple((count, rate * factor) for count, rate in curves[name])
        return replace(profile, matmul_flops_per_s=curves)
    caches = [
        replace(level, read_bytes_per_s=level.read_bytes_per_s * factor) if level.name == ceiling else level
        for level in profile.caches
    ]
    return replace(profile, caches=tuple(caches))
