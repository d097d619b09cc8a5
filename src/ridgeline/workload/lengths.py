"""Numbers of tokens: log-normal, cut off at a maximum, with the mean that was asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from ridgeline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LogNormalLengths:
    """Whole numbers in 1…`maximum`: a log-normal of shape `sigma`, longer draws drawn again.

    `mu` is such that the mean after the cut is `mean`. Raises ConfigError where no `mu` gives it.
    """

    mean: float
    sigma: float
    maximum: int

    def __post_init__(self) -> None:
        if not 1 <= self.mean < self.maximum / 2:
            raise ConfigError("mean", self.mean, f"must lie in 1…{self.maximum / 2:g}, half the maximum")
        if not 0 < self.sigma <= 3:
            raise ConfigError("sigma", self.sigma, "must lie in (0, 3]")

    @property
    def mu(self) -> float:
        """The parameter of the uncut distribution, by bisection of its cut mean, which grows with it."""
        low, high = -10.0, math.log(self.maximum) + 10.0
        for _ in range(80):
            middle = (low + high) / 2
            if _cut_mean(middle, self.sigma, self.maximum) < self.mean:
                low = middle
            else:
                high = middle
        return low

    def draw(self, count: int, rng: Random) -> list[int]:
        """`count` lengths."""
        mu = self.mu
        lengths: list[int] = []
        while len(lengths) < count:
            length = round(rng.lognormvariate(mu, self.sigma))
            if length <= self.maximum:
                lengths.append(max(length, 1))
        return lengths


def _cut_mean(mu: float, sigma: float, maximum: int) -> float:
    """Mean of a log-normal below `maximum`: e^(μ+σ²/2) · Φ(z − σ) / Φ(z), z = (ln maximum − μ) / σ."""
    z = (math.log(maximum) - mu) / sigma
    below = _normal_cdf(z)
    if below < 1e-12:
        return float(maximum)
    return math.exp(mu + sigma * sigma / 2) * _normal_cdf(z - sigma) / below


def _normal_cdf(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2
