"""The share of good requests as a falling curve over the rate, with what noise leaves uncertain.

Sources: Wilson's score interval (Wilson 1927); pool-adjacent-violators for the monotone fit (Ayer et al.
1955); draws from Jeffreys' Beta(good + ½, bad + ½) for the uncertainty of each rate's share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist, fmean, variance

NUM_DRAWS = 1000
_NUM_BLOCKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLevel:
    """All runs of one rate. `num_effective` ≤ `num_sent`: requests that pass or fail together count less;
    `fitted` is the share by the falling curve.
    """

    rate: float
    num_runs: int
    num_sent: int
    num_good: int
    num_effective: float
    fitted: float

    @property
    def share(self) -> float:
        """Good of sent."""
        return self.num_good / self.num_sent

    def interval(self, confidence: float) -> tuple[float, float]:
        """Wilson's interval of the share."""
        return share_interval(self.share * self.num_effective, self.num_effective, confidence)


def share_interval(num_good: float, num: float, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a share; (0, 1) of nothing."""
    if num <= 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, scale = num_good / num, 1 + z * z / num
    middle = (share + z * z / (2 * num)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / num + z * z / (4 * num * num))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def design_effect(passes: Sequence[bool]) -> float:
    """How many times the share's variance is that of independent requests; ≥ 1.

    By the means of ten blocks in order of arrival: a queue makes neighbours pass or fail together.
    """
    size = len(passes) // _NUM_BLOCKS
    share = fmean(passes) if passes else 0.0
    if size < 2 or not 0 < share < 1:
        return 1.0
    means = [fmean(passes[i * size : (i + 1) * size]) for i in range(_NUM_BLOCKS)]
    return min(max(size * variance(means) / (share * (1 - share)), 1.0), float(size))


def falling_fit(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-increasing sequence nearest to `values` by weighted squares."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        block = (value, weight, 1)
        while blocks and blocks[-1][0] < block[0]:
            mean, mass, count = blocks.pop()
            total = mass + block[1]
            block = ((mean * mass + block[0] * block[1]) / total, total, count + block[2])
        blocks.append(block)
    return [mean for mean, _, count in blocks for _ in range(count)]


def crossing(rates: Sequence[float], fitted: Sequence[float], target: float) -> float:
    """The highest rate at which a falling curve, straight between its points, is at least `target`.

    The last rate when the curve never falls below; 0 when its first point does.
    """
    above = sum(share >= target for share in fitted)
    if above == 0:
        return 0.0
    if above == len(rates):
        return rates[-1]
    low, high = above - 1, above
    part = (fitted[low] - target) / (fitted[low] - fitted[high])
    return rates[low] + part * (rates[high] - rates[low])


def crossing_interval(
    levels: Sequence[RateLevel], target: float, *, confidence: float, seed: int
) -> tuple[float, float]:
    """Between which rates the crossing lies when each rate's share is drawn from what its runs leave open."""
    rng = Random(f"capacity {seed}")
    rates = [level.rate for level in levels]
    weights = [level.num_effective for level in levels]
    found = []
    for _ in range(NUM_DRAWS):
        shares = [_draw(rng, level) for level in levels]
        found.append(crossing(rates, falling_fit(shares, weights), target))
    found.sort()
    tail = (1 - confidence) / 2
    return found[math.floor(tail * (NUM_DRAWS - 1))], found[math.ceil((1 - tail) * (NUM_DRAWS - 1))]


def _draw(rng: Random, level: RateLevel) -> float:
    good = level.share * level.num_effective
    return rng.betavariate(good + 0.5, level.num_effective - good + 0.5)
