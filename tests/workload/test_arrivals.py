from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.workload.arrivals import Ramp, paced_arrivals, ramp_arrivals, trace_arrivals


def gaps(instants: list[float]) -> list[float]:
    return [instants[0], *(later - earlier for earlier, later in pairwise(instants))]


@given(st.integers(1, 200), st.floats(0.1, 1000), st.floats(0.05, 50), st.integers(0, 9))
def test_the_last_arrival_lies_at_n_over_r_exactly(
    count: int, rate: float, burstiness: float, seed: int
) -> None:
    instants = paced_arrivals(count, request_rate=rate, burstiness=burstiness, rng=Random(seed))
    assert instants[-1] == count / rate
    assert instants == sorted(instants)
    assert instants[0] >= 0


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_gamma_variance(burstiness: float) -> None:
    instants = paced_arrivals(20_000, request_rate=10, burstiness=burstiness, rng=Random(1))
    assert fmean(gaps(instants)) == pytest.approx(0.1)
    assert pvariance(gaps(instants)) * 100 == pytest.approx(1 / burstiness, rel=0.1)


def test_infinite_burstiness_is_constant_and_the_first_waits_too() -> None:
    instants = paced_arrivals(8, request_rate=10, burstiness=math.inf, rng=Random(0))
    assert instants == pytest.approx([0.1 * (index + 1) for index in range(8)])


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert paced_arrivals(3, request_rate=math.inf, burstiness=1, rng=Random(0)) == [0, 0, 0]


@pytest.mark.parametrize(("rate", "burstiness"), [(0, 1), (-1, 1), (math.nan, 1), (1, 0), (1, math.nan)])
def test_rates_and_burstiness_are_positive(rate: float, burstiness: float) -> None:
    with pytest.raises(ConfigError):
        paced_arrivals(3, request_rate=rate, burstiness=burstiness, rng=Random(0))


def test_a_linear_ramp_by_hand() -> None:
    ramp = Ramp("linear", 1, 5)
    assert [ramp.rate(index, 5) for index in range(5)] == [1, 2, 3, 4, 5]
    instants = ramp_arrivals(5, ramp, burstiness=math.inf, rng=Random(0))
    assert gaps(instants) == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])


def test_an_exponential_ramp_by_hand() -> None:
    ramp = Ramp("exponential", 1, 16)
    assert [ramp.rate(index, 5) for index in range(5)] == pytest.approx([1, 2, 4, 8, 16])
    assert ramp.rate(0, 1) == 1


def test_a_ramp_is_not_scaled_to_an_end() -> None:
    ends = {ramp_arrivals(9, Ramp("linear", 2, 4), burstiness=1, rng=Random(seed))[-1] for seed in range(4)}
    assert len(ends) == 4


@pytest.mark.parametrize(
    ("strategy", "start", "end"), [("cubic", 1, 2), ("linear", 0, 2), ("exponential", 3, 2)]
)
def test_impossible_ramps(strategy: str, start: int, end: int) -> None:
    with pytest.raises(ConfigError):
        Ramp(strategy, start, end)


def test_a_trace_starts_at_its_first_request_and_scales() -> None:
    assert trace_arrivals([10.0, 12.0, 15.0], speed=2) == [0, 1, 2.5]


@pytest.mark.parametrize(("instants", "speed"), [([1.0, None], 1), ([1.0], 0), ([1.0], math.inf)])
def test_impossible_replays(instants: list[float | None], speed: float) -> None:
    with pytest.raises(ConfigError):
        trace_arrivals(instants, speed=speed)
