"""The search for the highest rate at which enough requests meet their SLOs: pure, one decision at a time.

First requests one at a time: who misses an SLO alone meets it at no rate. Then rates double until one
misses, and the bracket is bisected (geometrically) down to the wanted precision. At last its two ends are
repeated until they are decided, which also undoes a wrong turn: the falling fit over all runs moves, and
the search goes on from where it is then.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from statistics import variance

from ridgeline.config.checks import check_at_least
from ridgeline.errors import ConfigError
from ridgeline.loadgen.capacity_fit import RateLevel, crossing, crossing_interval, falling_fit, share_interval

ALONE = 0.0
"""The rate of requests sent one at a time, each after the answer to the one before."""
_MAX_HALVINGS = 4


class Verdict(StrEnum):
    """How a search ended."""

    FOUND = "found"
    NEVER = "never"
    """No rate: requests alone, or at the lowest rate tried, miss their SLOs too often."""
    ALWAYS = "always"
    """The highest rate allowed meets the target."""
    BUDGET = "budget"
    """Time, requests or probes were used up before the bracket was as narrow as wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How sure to be, and how much to spend."""

    target: float = 0.99
    """Share of requests that must meet all SLOs."""
    precision: float = 0.05
    """Stop when the lowest rate that misses is so near above the highest that meets, as a share of it."""
    confidence: float = 0.95
    """Of all intervals."""
    min_repeats: int = 2
    """Runs at each end of the final bracket, at least."""
    max_repeats: int = 4
    """And at most, while its share's interval holds the target."""
    start_rate: float | None = None
    """First rate; by default one request in the time one takes alone."""
    max_rate: float = 1000.0
    """Highest rate to try."""
    max_probes: int = 40
    """End the search after so many probes,"""
    max_requests: int = 100_000
    """or so many requests,"""
    max_seconds: float = 1800.0
    """or so many seconds of load."""
    seed: int = 0
    """Seed of prompts, arrivals and intervals."""

    def __post_init__(self) -> None:
        for name in ("target", "confidence"):
            if not 0.5 <= getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "must lie in [0.5, 1)")
        if not 0.001 <= self.precision <= 1:
            raise ConfigError("precision", self.precision, "must lie in 0.001…1")
        for name in ("min_repeats", "max_probes", "max_requests"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("max_repeats", self.max_repeats, self.min_repeats)
        for name in ("max_rate", "max_seconds", "start_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(name, value, "must be finite and > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One run at `rate`. `num_effective` as in `RateLevel`; `mean_e2e_s` of good requests, None for none."""

    rate: float
    num_sent: int
    num_good: int
    num_effective: float
    seconds: float
    mean_e2e_s: float | None
    attainment_by_slo: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Probe:
    """Measure at `rate` requests/s next (`ALONE`: one at a time), and why."""

    rate: float
    why: str


@dataclass(frozen=True, slots=True)
class Done:
    """The search is over."""

    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known so far. `rate`: where the fitted curve crosses the target; `low`…`high`: its interval,
    never narrower than the bracket `highest_met`…`lowest_missed`. None: not known (`high`: no miss so far).
    """

    rate: float | None
    low: float | None
    high: float | None
    highest_met: float | None
    lowest_missed: float | None


def next_probe(history: Sequence[ProbeResult], settings: SearchSettings) -> Probe | Done:
    """What to do after `history`."""
    if not history:
        return Probe(ALONE, "one at a time")
    alone, *levels = rate_levels(history)
    assert alone.rate == ALONE, "a search begins with requests one at a time"
    is_hopeless = alone.interval(settings.confidence)[1] < settings.target
    if is_hopeless and alone.num_runs >= settings.min_repeats:
        return Done(Verdict.NEVER)
    if _is_spent(history, settings):
        return Done(Verdict.BUDGET)
    if is_hopeless:
        return Probe(ALONE, "again, to be sure")
    if not levels:
        return Probe(min(_start_rate(history, settings), settings.max_rate), "to start with")
    met = [level for level in levels if level.fitted >= settings.target]
    missed = [level for level in levels if level.fitted < settings.target]
    if not missed:
        return _upwards(met[-1], settings)
    if not met:
        return _downwards(missed[0], _start_rate(history, settings), settings)
    return _between(met[-1], missed[0], settings)


def rate_levels(history: Sequence[ProbeResult]) -> list[RateLevel]:
    """The runs by rate, lowest first, with the falling fit over all of them."""
    by_rate: dict[float, list[ProbeResult]] = defaultdict(list)
    for probe in history:
        if probe.num_sent:
            by_rate[probe.rate].append(probe)
    groups = [by_rate[rate] for rate in sorted(by_rate)]
    shares = [sum(p.num_good for p in group) / sum(p.num_sent for p in group) for group in groups]
    common = _common_effect(history)
    weights = [_effective(group, common) for group in groups]
    return [
        RateLevel(
            rate=group[0].rate,
            num_runs=len(group),
            num_sent=sum(probe.num_sent for probe in group),
            num_good=sum(probe.num_good for probe in group),
            num_effective=weight,
            fitted=fitted,
        )
        for group, weight, fitted in zip(groups, weights, falling_fit(shares, weights), strict=True)
    ]


def _effective(runs: Sequence[ProbeResult], common: float) -> float:
    """How many independent requests the runs of one rate are worth: by what hangs together within them, or
    by how far they are from each other, whichever leaves less.
    """
    within = sum(min(p.num_effective, p.num_sent / (common if p.rate else 1.0)) for p in runs)
    share = sum(p.num_good for p in runs) / sum(p.num_sent for p in runs)
    spread = variance(p.num_good / p.num_sent for p in runs) if len(runs) > 1 else 0.0
    return within if spread == 0 else min(within, max(share * (1 - share) * len(runs) / spread, 1.0))


def _common_effect(history: Sequence[ProbeResult]) -> float:
    """How much requests of one run hang together, over the runs that can tell, by their misses: one that is
    all good can't tell, and one of an overload is a single slope.
    """
    telling = [p for p in history if p.rate != ALONE and p.num_sent > p.num_good > 0.8 * p.num_sent]
    misses = sum(p.num_sent - p.num_good for p in telling)
    total = sum((p.num_sent - p.num_good) * p.num_sent / p.num_effective for p in telling)
    return total / misses if telling else 1.0


def estimate(history: Sequence[ProbeResult], settings: SearchSettings) -> Estimate:
    """The capacity by all runs so far, at any moment of the search."""
    levels = rate_levels(history)
    rated = [level for level in levels if level.rate != ALONE]
    if not rated:
        return Estimate(rate=None, low=None, high=None, highest_met=None, lowest_missed=None)
    met = [level.rate for level in rated if level.fitted >= settings.target]
    missed = [level.rate for level in rated if level.fitted < settings.target]
    rate = crossing([level.rate for level in levels], [level.fitted for level in levels], settings.target)
    low, high = crossing_interval(levels, settings.target, confidence=settings.confidence, seed=settings.seed)
    highest, lowest = max(met, default=None), min(missed, default=None)
    return Estimate(
        rate=rate,
        low=min(low, rate if highest is None else highest),
        high=None if lowest is None else max(high, lowest),
        highest_met=highest,
        lowest_missed=lowest,
    )


def rising_pairs(levels: Sequence[RateLevel], confidence: float) -> list[tuple[float, float]]:
    """Neighbouring rates of which the higher one did better, by more than noise: no falling curve fits."""
    return [
        (low.rate, high.rate)
        for low, high in pairwise(levels)
        if low.interval(confidence)[1] < high.interval(confidence)[0]
    ]


def unsteady_rates(history: Sequence[ProbeResult], confidence: float) -> list[float]:
    """Rates whose runs differ by more than noise: the server or its machine changed meanwhile."""
    found = []
    for rate in sorted({probe.rate for probe in history}):
        ends = [
            share_interval(p.num_good / p.num_sent * p.num_effective, p.num_effective, confidence)
            for p in history
            if p.rate == rate and p.num_sent
        ]
        if ends and max(low for low, _ in ends) > min(high for _, high in ends):
            found.append(rate)
    return found


def _start_rate(history: Sequence[ProbeResult], settings: SearchSettings) -> float:
    """As given, else one request in the time that one takes alone; 1/s where none was good."""
    if settings.start_rate is not None:
        return settings.start_rate
    times = [probe.mean_e2e_s for probe in history if probe.rate == ALONE and probe.mean_e2e_s]
    return float(f"{len(times) / sum(times):.2g}") if times else 1.0


def _upwards(top: RateLevel, settings: SearchSettings) -> Probe | Done:
    if top.rate < settings.max_rate:
        return Probe(min(2 * top.rate, settings.max_rate), "twice the highest that met")
    if _is_open(top, settings):
        return Probe(top.rate, "the upper limit again")
    return Done(Verdict.ALWAYS)


def _downwards(bottom: RateLevel, start_rate: float, settings: SearchSettings) -> Probe | Done:
    floor = start_rate / 2**_MAX_HALVINGS
    if bottom.rate > floor * 1.001:
        return Probe(bottom.rate / 2, "half the lowest that missed")
    if _is_open(bottom, settings):
        return Probe(bottom.rate, "the lowest rate again")
    return Done(Verdict.NEVER)


def _between(low: RateLevel, high: RateLevel, settings: SearchSettings) -> Probe | Done:
    if high.rate > low.rate * (1 + settings.precision):
        return Probe(float(f"{math.sqrt(low.rate * high.rate):.4g}"), "between met and missed")
    for level in (low, high):
        if _is_open(level, settings):
            return Probe(level.rate, "an end of the bracket again")
    return Done(Verdict.FOUND)


def _is_open(level: RateLevel, settings: SearchSettings) -> bool:
    """More runs could still tell on which side of the target the rate lies."""
    if level.num_runs < settings.min_repeats:
        return True
    low, high = level.interval(settings.confidence)
    return level.num_runs < settings.max_repeats and low < settings.target <= high


def _is_spent(history: Sequence[ProbeResult], settings: SearchSettings) -> bool:
    return (
        len(history) >= settings.max_probes
        or sum(probe.num_sent for probe in history) >= settings.max_requests
        or sum(probe.seconds for probe in history) >= settings.max_seconds
    )
