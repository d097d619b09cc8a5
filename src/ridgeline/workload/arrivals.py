"""Instants of arrival."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from ridgeline.errors import ConfigError

RAMP_STRATEGIES = ("linear", "exponential")


def poisson_arrivals(count: int, request_rate: float, rng: Random) -> list[float]:
    """`count` instants in seconds, gaps exponential with mean 1 / `request_rate` requests/s; inf: all at 0.

    Raises:
        ConfigError: a rate that is not > 0.
    """
    _check_rate(request_rate)
    now, arrivals = 0.0, []
    for _ in range(count):
        now += rng.expovariate(request_rate) if request_rate != float("inf") else 0.0
        arrivals.append(now)
    return arrivals


def paced_arrivals(count: int, *, request_rate: float, burstiness: float, rng: Random) -> list[float]:
    """`count` instants in seconds of which the last lies at `count` / `request_rate` exactly; inf: all at 0.

    Gaps are gamma with shape `burstiness` and mean 1 / `request_rate`: 1 is Poisson, below it burstier, above
    smoother, inf constant. The first request waits a gap too. These are the arrivals of vLLM's `bench serve`,
    the scaling to the exact end included.

    Raises:
        ConfigError: a rate or a burstiness that is not > 0.
    """
    _check_rate(request_rate)
    if not burstiness > 0:
        raise ConfigError("burstiness", burstiness, "must be > 0: 1 is Poisson, inf constant gaps")
    if request_rate == math.inf:
        return [0.0] * count
    if burstiness == math.inf:
        return [(index + 1) / request_rate for index in range(count)]
    instants = list(accumulate(rng.gammavariate(burstiness, 1.0) for _ in range(count)))
    if not instants:
        return []
    # A shape near 0 can make all gaps 0 in double precision: then all come at the end.
    end_s = count / request_rate
    scale = end_s / instants[-1] if instants[-1] > 0 else 0.0
    return [min(instant * scale, end_s) for instant in instants[:-1]] + [end_s]


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that climbs from `start_rps` to `end_rps` over the run's requests.

    Raises:
        ConfigError: an unknown strategy, a start of 0 or below, or an end below the start.
    """

    strategy: str
    start_rps: int
    end_rps: int

    def __post_init__(self) -> None:
        if self.strategy not in RAMP_STRATEGIES:
            raise ConfigError("ramp_up_strategy", self.strategy, "must be linear or exponential")
        if self.start_rps <= 0:
            raise ConfigError("ramp_up_start_rps", self.start_rps, "must be > 0 requests/s")
        if self.end_rps < self.start_rps:
            raise ConfigError("ramp_up_end_rps", self.end_rps, f"must be ≥ the start, {self.start_rps}")

    def rate(self, index: int, count: int) -> float:
        """Requests/s at request `index` of `count`: start + (end − start)·p or start·(end/start)^p."""
        progress = index / max(count - 1, 1)
        if self.strategy == "linear":
            return self.start_rps + (self.end_rps - self.start_rps) * progress
        return self.start_rps * math.pow(self.end_rps / self.start_rps, progress)


def ramp_arrivals(count: int, ramp: Ramp, *, burstiness: float, rng: Random) -> list[float]:
    """`count` instants in seconds; each gap has the mean of its own rate, nothing is scaled to an end.

    Raises:
        ConfigError: a burstiness that is not > 0.
    """
    if not burstiness > 0:
        raise ConfigError("burstiness", burstiness, "must be > 0: 1 is Poisson, inf constant gaps")
    gaps = []
    for index in range(count):
        mean_s = 1 / ramp.rate(index, count)
        is_constant = burstiness == math.inf
        gaps.append(mean_s if is_constant else rng.gammavariate(burstiness, mean_s / burstiness))
    return list(accumulate(gaps))


def trace_arrivals(arrived_at_s: Sequence[float | None], *, speed: float) -> list[float]:
    """A trace's own instants from its first request, `speed` times as fast.

    Raises:
        ConfigError: a request without an instant, or a speed that is not finite and > 0.
    """
    if not 0 < speed < math.inf:
        raise ConfigError("trace_speed", speed, "must be finite and > 0; 2 replays twice as fast")
    instants = [instant for instant in arrived_at_s if instant is not None]
    if len(instants) != len(arrived_at_s):
        raise ConfigError(
            "self_timed", True, "the dataset has requests without a time; give --request-rate instead"
        )
    first = min(instants, default=0.0)
    return [(instant - first) / speed for instant in instants]


def _check_rate(request_rate: float) -> None:
    if not request_rate > 0:
        raise ConfigError("request_rate", request_rate, "must be > 0 requests/s")
