"""Instants of arrival."""

from __future__ import annotations

from random import Random

from ridgeline.errors import ConfigError


def poisson_arrivals(count: int, request_rate: float, rng: Random) -> list[float]:
    """`count` instants in seconds, gaps exponential with mean 1 / `request_rate` requests/s; inf: all at 0.

    Raises:
        ConfigError: a rate that is not > 0.
    """
    if not request_rate > 0:
        raise ConfigError("request_rate", request_rate, "must be > 0 requests/s")
    now, arrivals = 0.0, []
    for _ in range(count):
        now += rng.expovariate(request_rate) if request_rate != float("inf") else 0.0
        arrivals.append(now)
    return arrivals
