"""Bootstrap of a run's figures: how much they would scatter if the same load came again.

Requests are drawn in blocks of neighbours by order of arrival, ⌈n^⅓⌉ long and around the end (the circular
block bootstrap; Politis, Romano 1992), since a queue makes neighbours alike. Gaps between tokens come with
their request. Percentiles are interpolated linearly at rank (n − 1)·p/100, as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MIN_RESAMPLES = 200
_MAX_DRAWN = 200_000_000
_ROWS_AT_ONCE = 4_000_000


class RequestSample:
    """One value of each request: mean and percentiles, of the data and of resamples."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = np.asarray(values, np.float64)

    def statistic(self, p: float | None) -> float | None:
        """The mean (None) or the p-th percentile; None of nothing."""
        if not len(self._values):
            return None
        return float(self._values.mean() if p is None else np.percentile(self._values, p))

    def replicates(self, ps: Sequence[float | None], *, resamples: int, seed: int) -> Floats:
        """[resample, statistic]; at least one value is needed."""
        n, rng = len(self._values), np.random.default_rng(seed)
        rows = max(1, _ROWS_AT_ONCE // n)
        parts = []
        for start in range(0, resamples, rows):
            drawn = self._values[block_indices(n, min(rows, resamples - start), rng)]
            parts.append(np.stack([_of_rows(drawn, p) for p in ps], axis=1))
        return np.concatenate(parts)


class GapSample:
    """Many values of each request, drawn together with it."""

    def __init__(self, gaps: Sequence[Sequence[float]]) -> None:
        values = np.array([gap for each in gaps for gap in each], np.float64)
        owners = np.repeat(np.arange(len(gaps)), [len(each) for each in gaps])
        order = np.argsort(values, kind="stable")
        self._num_requests = len(gaps)
        self._values, self._owners = values[order], owners[order]

    def statistic(self, p: float | None) -> float | None:
        """As `RequestSample`."""
        if not len(self._values):
            return None
        return float(self._values.mean() if p is None else np.percentile(self._values, p))

    def replicates(self, ps: Sequence[float | None], *, resamples: int, seed: int) -> Floats:
        """As `RequestSample`; a resample without any gap is left out."""
        rng = np.random.default_rng(seed)
        found = []
        for _ in range(resamples):
            drawn = block_indices(self._num_requests, 1, rng)[0]
            weights = np.bincount(drawn, minlength=self._num_requests)[self._owners]
            if weights.any():
                found.append([self._weighted(weights, p) for p in ps])
        return np.array(found)

    def _weighted(self, weights: Ints, p: float | None) -> float:
        """Of the values, each repeated `weights` times."""
        if p is None:
            return float(np.average(self._values, weights=weights))
        ends = np.cumsum(weights)
        rank = (int(ends[-1]) - 1) * p / 100
        low = self._values[np.searchsorted(ends, math.floor(rank) + 1)]
        high = self._values[np.searchsorted(ends, math.ceil(rank) + 1)]
        return float(low + (high - low) * (rank - math.floor(rank)))


def block_indices(n: int, rows: int, rng: np.random.Generator) -> Ints:
    """[rows, n]: resamples of 0…n − 1 in blocks of neighbours."""
    length = math.ceil(n ** (1 / 3))
    starts = rng.integers(0, n, (rows, -(-n // length), 1))
    return ((starts + np.arange(length)) % n).reshape(rows, -1)[:, :n]


def num_resamples(wanted: int, num_values: int) -> int:
    """Fewer for very many values, so that a comparison stays a matter of seconds; never below 200."""
    return max(min(wanted, _MAX_DRAWN // max(num_values, 1)), min(wanted, MIN_RESAMPLES))


def block_rates(amounts: Sequence[float], *, resamples: int, seed: int) -> Floats:
    """[resample]: means of equally long stretches of time, drawn singly."""
    values, rng = np.asarray(amounts, np.float64), np.random.default_rng(seed)
    return np.asarray(values[rng.integers(0, len(values), (resamples, len(values)))].mean(axis=1))


def interval(differences: Floats, confidence: float) -> tuple[float, float]:
    """The middle `confidence` of them."""
    tail = 50 * (1 - confidence)
    low, high = np.percentile(differences, [tail, 100 - tail])
    return float(low), float(high)


def _of_rows(drawn: Floats, p: float | None) -> Floats:
    return np.asarray(drawn.mean(axis=1) if p is None else np.percentile(drawn, p, axis=1))
