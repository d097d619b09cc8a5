"""The capacity search on simulated servers whose capacity is known, and its statistics by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.loadgen.capacity import (
    ALONE,
    Done,
    Estimate,
    Probe,
    ProbeResult,
    SearchSettings,
    Verdict,
    estimate,
    next_probe,
    rate_levels,
    rising_pairs,
    unsteady_rates,
)
from ridgeline.loadgen.capacity_fit import (
    RateLevel,
    crossing,
    crossing_interval,
    design_effect,
    falling_fit,
    share_interval,
)

SERVICE_S = 0.1
SLO_S = 0.4
Server = Callable[[float, int, Random], list[bool]]


def md1(rate: float, count: int, rng: Random) -> list[bool]:
    """One place, fixed service time, Poisson arrivals (Lindley's recursion): who is served within the SLO."""
    wait, passes = 0.0, []
    for _ in range(count):
        passes.append(wait + SERVICE_S <= SLO_S)
        gap = rng.expovariate(rate) if rate != ALONE else SERVICE_S
        wait = max(wait + SERVICE_S - gap, 0.0)
    return passes


def md1_capacity(target: float) -> float:
    """By the waiting time's distribution of M/D/1 (Erlang 1909), bisected."""

    def share(rate: float) -> float:
        rho, limit = rate * SERVICE_S, SLO_S - SERVICE_S
        terms = range(math.floor(limit / SERVICE_S + 1e-9) + 1)
        return (1 - rho) * sum(
            (rate * (k * SERVICE_S - limit)) ** k
            / math.factorial(k)
            * math.exp(-rate * (k * SERVICE_S - limit))
            for k in terms
        )

    low, high = 0.1, 1 / SERVICE_S
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle) >= target else (low, middle)
    return low


def search(
    server: Server, settings: SearchSettings, *, count: int = 600, seed: int = 0
) -> tuple[list[ProbeResult], Verdict, Estimate]:
    rng = Random(seed)
    history: list[ProbeResult] = []
    for _ in range(1000):
        step = next_probe(history, settings)
        if isinstance(step, Done):
            return history, step.verdict, estimate(history, settings)
        assert step.why
        passes = server(step.rate, 40 if step.rate == ALONE else count, rng)
        history.append(
            ProbeResult(
                rate=step.rate,
                num_sent=len(passes),
                num_good=sum(passes),
                num_effective=len(passes) / design_effect(passes),
                seconds=len(passes) / (step.rate or 10),
                mean_e2e_s=SERVICE_S,
            )
        )
    raise AssertionError("the search does not end")


WIDE = SearchSettings(max_seconds=1e9, max_requests=10**9)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("target", [0.9, 0.99])
def test_a_queue_of_known_capacity(seed: int, target: float) -> None:
    settings = SearchSettings(target=target, max_seconds=1e9, max_requests=10**9)
    history, verdict, found = search(md1, settings, count=1500, seed=seed)
    assert verdict is Verdict.FOUND
    assert found.rate == pytest.approx(md1_capacity(target), rel=0.12)
    assert found.low <= found.rate <= found.high
    assert found.low <= found.highest_met <= found.lowest_missed <= found.high
    assert found.lowest_missed <= found.highest_met * 1.05001
    assert len(history) <= WIDE.max_probes
    for end in (found.highest_met, found.lowest_missed):
        assert sum(probe.rate == end for probe in history) >= WIDE.min_repeats


def test_the_interval_holds_the_truth_nearly_always() -> None:
    truth = md1_capacity(0.95)
    settings = SearchSettings(target=0.95, max_seconds=1e9, max_requests=10**9)
    held = 0
    for seed in range(40):
        _, _, found = search(md1, settings, seed=100 + seed)
        held += found.low <= truth <= (found.high or math.inf)
    assert held >= 34


def test_a_sharp_edge_is_found_to_the_precision() -> None:
    history, verdict, found = search(lambda rate, n, _: [rate <= 7.3] * n, WIDE)
    assert verdict is Verdict.FOUND
    assert found.highest_met <= 7.3 < found.lowest_missed
    assert found.lowest_missed <= 1.05 * found.highest_met
    assert len(history) < 16


def test_a_server_that_fails_alone_never_meets() -> None:
    history, verdict, found = search(lambda _r, n, rng: [rng.random() < 0.7 for _ in range(n)], WIDE)
    assert verdict is Verdict.NEVER
    assert [probe.rate for probe in history] == [ALONE] * 2
    assert found == Estimate(rate=None, low=None, high=None, highest_met=None, lowest_missed=None)


def test_a_server_that_is_good_only_alone() -> None:
    history, verdict, found = search(lambda rate, n, _: [rate == ALONE] * n, WIDE)
    assert verdict is Verdict.NEVER
    assert found.highest_met is None
    assert found.rate < min(probe.rate for probe in history if probe.rate)


def test_a_server_that_always_meets_stops_at_the_limit() -> None:
    settings = SearchSettings(max_rate=100, max_seconds=1e9)
    history, verdict, found = search(lambda _rate, n, _: [True] * n, settings)
    assert verdict is Verdict.ALWAYS
    assert (found.rate, found.highest_met, found.lowest_missed, found.high) == (100, 100, None, None)
    assert [probe.rate for probe in history][-2:] == [100, 100]


def test_one_ruined_run_does_not_decide() -> None:
    """A run that a neighbour on the machine spoilt is outvoted once its rate is repeated."""
    ruined = []

    def server(rate: float, count: int, rng: Random) -> list[bool]:
        if rate == 20 and not ruined:
            ruined.append(rate)
            return [rng.random() < 0.975 for _ in range(count)]
        return [rate <= 31] * count

    _, verdict, found = search(server, SearchSettings(max_seconds=1e9, max_repeats=5))
    assert ruined
    assert verdict is Verdict.FOUND
    assert found.highest_met > 28


def test_independent_noise() -> None:
    def server(rate: float, count: int, rng: Random) -> list[bool]:
        return [rng.random() < 1 / (1 + math.exp((rate - 50) / 3)) for _ in range(count)]

    truth = 50 - 3 * math.log(0.99 / 0.01)
    for seed in range(6):
        _, verdict, found = search(server, WIDE, seed=seed)
        assert verdict is Verdict.FOUND
        assert found.low <= truth <= found.high or found.rate == pytest.approx(truth, rel=0.06)


def test_a_curve_that_rises_is_fitted_and_reported() -> None:
    shares = {ALONE: 1.0, 10: 1.0, 20: 0.9, 40: 1.0, 80: 0.0}

    def server(rate: float, count: int, rng: Random) -> list[bool]:
        share = shares[min(shares, key=lambda known: abs(known - rate))]
        return [rng.random() < share for _ in range(count)]

    history, verdict, found = search(server, WIDE)
    assert verdict in (Verdict.FOUND, Verdict.BUDGET)
    assert 10 <= found.rate < 20
    rising = [*history, *(ProbeResult(rate=40, num_sent=600, num_good=600, num_effective=600, seconds=1,
                                      mean_e2e_s=1),)]  # fmt: skip
    assert rising_pairs(rate_levels(rising), 0.95)
    assert not rising_pairs(rate_levels(history), 0.95)


@pytest.mark.parametrize(
    "settings",
    [
        SearchSettings(max_probes=3),
        SearchSettings(max_requests=700, max_seconds=1e9),
        SearchSettings(max_seconds=61.0),
    ],
)
def test_a_budget_ends_with_what_is_known(settings: SearchSettings) -> None:
    history, verdict, found = search(md1, settings)
    assert verdict is Verdict.BUDGET
    assert len(history) <= 4
    assert found.rate is not None


def test_nothing_known_is_none() -> None:
    assert estimate([], WIDE).rate is None
    assert next_probe([], WIDE) == Probe(ALONE, "one at a time")


def test_a_given_start() -> None:
    alone = ProbeResult(rate=ALONE, num_sent=40, num_good=40, num_effective=40, seconds=4, mean_e2e_s=0.25)
    assert next_probe([alone], WIDE) == Probe(4.0, "to start with")
    assert next_probe([alone], SearchSettings(start_rate=9)).rate == 9
    assert next_probe([alone], SearchSettings(start_rate=9, max_rate=2)).rate == 2


def test_intervals_by_hand() -> None:
    assert share_interval(50, 100, 0.95) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert share_interval(100, 100, 0.95) == pytest.approx((0.9630, 1.0), abs=1e-4)
    assert share_interval(0, 0, 0.95) == (0.0, 1.0)


def test_falling_fit_by_hand() -> None:
    assert falling_fit([1.0, 0.8, 0.9, 0.2], [1, 1, 1, 1]) == pytest.approx([1.0, 0.85, 0.85, 0.2])
    assert falling_fit([0.5, 1.0], [3, 1]) == pytest.approx([0.625, 0.625])
    assert falling_fit([], []) == []


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.5, 9)), min_size=1, max_size=12))
def test_a_falling_fit_falls_and_keeps_the_mean(pairs: list[tuple[float, float]]) -> None:
    values, weights = [v for v, _ in pairs], [w for _, w in pairs]
    fitted = falling_fit(values, weights)
    assert all(b <= a + 1e-12 for a, b in pairwise(fitted))
    assert sum(f * w for f, w in zip(fitted, weights, strict=True)) == pytest.approx(
        sum(v * w for v, w in pairs)
    )


def test_crossings_by_hand() -> None:
    assert crossing([0, 2, 4], [1.0, 1.0, 0.98], 0.99) == pytest.approx(3.0)
    assert crossing([0, 2], [1.0, 0.99], 0.99) == 2
    assert crossing([0, 2], [0.5, 0.4], 0.99) == 0.0


def test_neighbours_that_fail_together_count_less() -> None:
    alternating = [i % 10 != 0 for i in range(400)]
    together = [not 100 <= i < 140 for i in range(400)]
    assert design_effect(alternating) == 1.0
    assert design_effect(together) > 5
    assert design_effect([True] * 50) == design_effect([]) == design_effect([True, False]) == 1.0


def level(rate: float, good: int, sent: int) -> RateLevel:
    return RateLevel(
        rate=rate, num_runs=1, num_sent=sent, num_good=good, num_effective=sent, fitted=good / sent
    )


def test_more_requests_make_a_narrower_interval() -> None:
    wide = crossing_interval([level(1, 50, 50), level(9, 0, 50)], 0.9, confidence=0.95, seed=1)
    narrow = crossing_interval([level(1, 5000, 5000), level(9, 0, 5000)], 0.9, confidence=0.95, seed=1)
    assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]
    assert narrow[1] - narrow[0] < 0.1
    again = crossing_interval([level(1, 50, 50), level(9, 0, 50)], 0.9, confidence=0.95, seed=1)
    assert again == wide


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target", 1.0),
        ("target", 0.2),
        ("precision", 0.0),
        ("confidence", math.nan),
        ("min_repeats", 0),
        ("max_repeats", 1),
        ("max_rate", math.inf),
        ("max_seconds", 0),
        ("start_rate", -1),
        ("max_probes", 0),
    ],
)
def test_settings_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        SearchSettings(**{name: value})
    assert caught.value.field == name


def probe(rate: float, good: int, sent: int) -> ProbeResult:
    return ProbeResult(
        rate=rate, num_sent=sent, num_good=good, num_effective=sent, seconds=1.0, mean_e2e_s=0.1
    )


def test_runs_of_one_rate_that_disagree_are_named() -> None:
    history = [probe(0, 9, 10), probe(4, 200, 200), probe(4, 100, 200), probe(8, 90, 100), probe(8, 92, 100)]
    assert unsteady_rates(history, 0.95) == [4]
    assert unsteady_rates([], 0.95) == []
