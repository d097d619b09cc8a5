"""Percentiles and summaries of a list of numbers; undefined is None, never 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MIN_N_P99, MIN_N_P999 = 100, 1000


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean, percentiles, maximum and population standard deviation of `n` values, in their unit.

    `low_n`: fewer than 100 values, so that P99 lies between the two largest; `low_n_p999`: fewer than 1,000,
    the same for P99.9.
    """

    n: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None
    std: float | None
    low_n: bool
    p999: float | None = None
    low_n_p999: bool = True


def percentile(values: Sequence[float], p: float) -> float | None:
    """Linear interpolation at rank (n − 1)·p/100 of the sorted values, as NumPy's default; None for n = 0."""
    assert 0 <= p <= 100, p
    return _at_rank(sorted(values), p) if values else None


def summarize(values: Sequence[float]) -> Summary:
    """The summary of `values`; all None for none."""
    n = len(values)
    if n == 0:
        return Summary(0, None, None, None, None, None, None, None, low_n=True)
    ordered = sorted(values)
    mean = math.fsum(ordered) / n
    p50, p90, p95, p99, p999 = (_at_rank(ordered, p) for p in (50, 90, 95, 99, 99.9))
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / n)
    low_n, low_n_p999 = n < MIN_N_P99, n < MIN_N_P999
    return Summary(n, mean, p50, p90, p95, p99, ordered[-1], std, low_n, p999, low_n_p999)


def _at_rank(ordered: Sequence[float], p: float) -> float:
    rank = (len(ordered) - 1) * p / 100
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    share = rank - below
    # Two forms, so that the result never leaves the two values between which it lies.
    gap = ordered[above] - ordered[below]
    return ordered[above] - gap * (1 - share) if share >= 0.5 else ordered[below] + gap * share
