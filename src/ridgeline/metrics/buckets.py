"""Histograms with fixed buckets: vLLM's limits, and ours between them, so that quantiles are worth a look."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from ridgeline.errors import ConfigError

VLLM_BUCKETS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "ttft": (
            *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
            *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
        ),
        "itl": (
            *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
            *(20.0, 40.0, 80.0),
        ),
        "latency": (
            *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
            *(240.0, 480.0, 960.0, 1920.0, 7680.0),
        ),
        "iteration": tuple(float(2**n) for n in (0, *range(3, 15))),
        "residency": (
            *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
            *(60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
        ),
    }
)
"""Family → upper limits, seconds or tokens. Source: vllm/v1/metrics/buckets.py, 0.33."""

_STEPS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.5, 9.0)
"""Limits of a decade: neighbours differ by a quarter of the lower one at most."""
QUANTILE_ERROR = 0.25
"""Most that a quantile read from a latency histogram is off, as a share of the exact one, inside its range:
two values in one bucket differ by no more.
"""
QUANTILE_RANGES_S: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"ttft": (0.0005, 40.0), "itl": (0.0005, 2.5), "latency": (0.0005, 120.0)}
)
"""Family → from where to where that holds: from half a small model's token to the patience of a person."""


def _fine(low: float, high: float) -> tuple[float, ...]:
    decades = (float(f"{step}e{exponent}") for exponent in range(-4, 3) for step in _STEPS)
    return tuple(limit for limit in decades if low <= limit <= high)


_OURS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "ttft": _fine(*QUANTILE_RANGES_S["ttft"]),
        "itl": (*_fine(*QUANTILE_RANGES_S["itl"]), 0.0065, 0.008),
        "latency": _fine(*QUANTILE_RANGES_S["latency"]),
        "iteration": (2.0, 4.0),
        "residual": (0.5, 0.67, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0),
        "count": (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
    }
)
FAMILIES = (*VLLM_BUCKETS, "tokens", "residual", "count")


class Distribution:
    """Counts of values by bucket, their number and their sum; a value equal to a limit lies below it."""

    __slots__ = ("counts", "limits", "total")

    def __init__(self, limits: Sequence[float]) -> None:
        self.limits = tuple(limits)
        self.counts = [0] * (len(self.limits) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self.counts[bisect_left(self.limits, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, float]]:
        """(`le`, values up to it) as the exposition format has them, the last one +Inf."""
        rows, so_far = [], 0
        for limit, count in zip((*self.limits, float("inf")), self.counts, strict=True):
            so_far += count
            rows.append((_le(limit), float(so_far)))
        return rows


def family_limits(
    max_model_len: int, replaced: Mapping[str, Sequence[float]]
) -> dict[str, tuple[float, ...]]:
    """The limits of every family; `tokens` is the 1-2-5 series up to `max_model_len`."""
    limits = {
        name: tuple(sorted({*VLLM_BUCKETS.get(name, ()), *_OURS.get(name, ())}))
        for name in FAMILIES
        if name != "tokens"
    }
    limits["tokens"] = _one_two_five(max_model_len)
    return limits | {name: tuple(each) for name, each in replaced.items()}


def parse_buckets(words: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """`FAMILY=0.1,0.2,1` for each family to replace.

    Raises:
        ConfigError: another shape, an unknown family, limits that don't rise.
    """
    found: dict[str, tuple[float, ...]] = {}
    for word in words:
        family, _, text = word.partition("=")
        if family not in FAMILIES:
            raise ConfigError("metrics_buckets", word, f"must be FAMILY=LIMITS with {', '.join(FAMILIES)}")
        try:
            limits = tuple(float(each) for each in text.split(","))
        except ValueError:
            limits = ()
        rises = all(a < b for a, b in pairwise(limits))
        if not limits or not rises or not all(0 < limit < float("inf") for limit in limits):
            raise ConfigError("metrics_buckets", word, "needs rising numbers > 0 with commas between them")
        found[family] = limits
    return found


def _one_two_five(largest: int) -> tuple[float, ...]:
    series = (m * 10**e for e in range(12) for m in (1, 2, 5))
    return tuple(float(value) for value in series if value <= largest)


def _le(limit: float) -> str:
    return "+Inf" if limit == float("inf") else repr(float(limit))
