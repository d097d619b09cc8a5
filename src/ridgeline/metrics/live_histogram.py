"""LiveHistogram: percentiles while values still come, in memory that does not grow with their number.

Log-linear buckets: each octave of two is cut into equal parts, so that every bucket is narrower than a fixed
share of its values. Source of the idea: HdrHistogram (hdrhistogram.org); its package counts integers
between limits set beforehand, and latencies are neither.
"""

from __future__ import annotations

import math

_BITS = 7
RELATIVE_ERROR = 1 / (1 << (_BITS + 1))
"""Most that a percentile is off, as a share of the exact one: half a bucket over its lower end, 0.4 %."""

_LOWEST_OCTAVE, _HIGHEST_OCTAVE = -20, 20
LEAST = 2.0 ** (_LOWEST_OCTAVE - 1)
"""Values below (about half a millionth) count as 0: the error is then at most this."""
MOST = 2.0**_HIGHEST_OCTAVE
"""Values from here on (about a million) count as this."""

_PARTS = 1 << _BITS
_NUM_BUCKETS = (_HIGHEST_OCTAVE - _LOWEST_OCTAVE + 1) * _PARTS


class LiveHistogram:
    """Counts values ≥ 0 in 5,248 buckets; taking one costs the same however many there were."""

    __slots__ = ("_counts", "_num_least", "_num_most", "n")

    def __init__(self) -> None:
        self.n = 0
        self._num_least = self._num_most = 0
        self._counts = [0] * _NUM_BUCKETS

    def add(self, value: float) -> None:
        """Take a value; a negative one or a NaN is a mistake of ours."""
        assert value >= 0, value
        self.n += 1
        if value < LEAST:
            self._num_least += 1
        elif value >= MOST:
            self._num_most += 1
        else:
            self._counts[_bucket(value)] += 1

    def percentile(self, p: float) -> float | None:
        """Linear interpolation at rank (n − 1)·p/100, to within `RELATIVE_ERROR`; None: no value."""
        assert 0 <= p <= 100, p
        if self.n == 0:
            return None
        rank = (self.n - 1) * p / 100
        below = math.floor(rank)
        low, high = self._at(below), self._at(min(below + 1, self.n - 1))
        return low + (high - low) * (rank - below)

    def _at(self, index: int) -> float:
        """About the value of that index in rising order."""
        left = index - self._num_least
        if left < 0:
            return 0.0
        for bucket, count in enumerate(self._counts):
            left -= count
            if left < 0:
                return _middle(bucket)
        return MOST


def _bucket(value: float) -> int:
    mantissa, octave = math.frexp(value)  # value = mantissa · 2**octave, 0.5 ≤ mantissa < 1
    part = int((mantissa - 0.5) * 2 * _PARTS)
    return (octave - _LOWEST_OCTAVE) * _PARTS + part


def _middle(bucket: int) -> float:
    octave, part = divmod(bucket, _PARTS)
    return math.ldexp(0.5 + (part + 0.5) / (2 * _PARTS), octave + _LOWEST_OCTAVE)
