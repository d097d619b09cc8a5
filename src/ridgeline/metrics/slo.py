"""Service level objectives: which requests meet them, and how many of those a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ridgeline.errors import ConfigError
from ridgeline.metrics.client_record import Outcome
from ridgeline.metrics.durations import TimedTokens, e2e_s, icl_s, itl_s, tpot_s, ttft_s
from ridgeline.metrics.percentiles import percentile

SLO_VALUES: Mapping[str, Callable[[TimedTokens], float | None]] = {
    "ttft": ttft_s,
    "tpot": tpot_s,
    "e2el": e2e_s,
    "itl_p99": lambda record: percentile(itl_s(record), 99),
    "icl_max": lambda record: max(icl_s(record), default=None),
}
"""SLO name → the duration in seconds of one request that it bounds."""


class GoodputRecord(TimedTokens, Protocol):
    """A record that tells how its request ended and which limits it brought along."""

    @property
    def outcome(self) -> Outcome | None:
        """None: it is not over."""
        ...

    @property
    def slos_s(self) -> Mapping[str, float]:
        """Limits of this request alone, in seconds by name."""
        ...


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that are ok and meet every SLO: a second of the window, and of all that were sent.

    `attainment_by_slo` takes each SLO alone; `undefined` counts passes of a metric that a request has not.
    """

    slos_s: Mapping[str, float]
    num_good: int
    rate: float | None
    attainment: float | None
    attainment_by_slo: Mapping[str, float | None]
    undefined: Mapping[str, int]


def parse_slos(words: Iterable[str]) -> dict[str, float]:
    """`ttft:500 tpot:50`, milliseconds, as limits in seconds by name.

    Raises:
        ConfigError: another shape, an unknown name, a negative limit, a name given twice.
    """
    limits: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition(":")
        if name not in SLO_VALUES:
            raise ConfigError("goodput", word, f"must be NAME:MILLISECONDS with {', '.join(SLO_VALUES)}")
        if name in limits:
            raise ConfigError("goodput", word, f"{name} is given twice")
        try:
            limit_ms = float(value)
        except ValueError:
            limit_ms = -1.0
        if not 0 <= limit_ms < float("inf"):
            raise ConfigError("goodput", word, "needs a number of milliseconds ≥ 0")
        limits[name] = limit_ms / 1000
    return limits


def goodput(records: Sequence[GoodputRecord], slos: Mapping[str, float], window_s: float) -> Goodput:
    """Count the good ones among `records` of all requests sent; `slos` in seconds, a request's own go
    before them. A limit itself passes.
    """
    sent = len(records)
    ok = [record for record in records if record.outcome is Outcome.OK]
    names = dict.fromkeys([*slos, *(name for record in records for name in record.slos_s)])
    passes = {name: [meets(record, name, _limit(record, name, slos)) for record in ok] for name in names}
    num_good = sum(all(each) for each in zip(*passes.values(), strict=True)) if passes else len(ok)
    return Goodput(
        slos_s=dict(slos),
        num_good=num_good,
        rate=num_good / window_s if window_s > 0 else None,
        attainment=num_good / sent if sent else None,
        attainment_by_slo={name: sum(each) / sent if sent else None for name, each in passes.items()},
        undefined={name: sum(SLO_VALUES[name](record) is None for record in ok) for name in names},
    )


def meets(record: GoodputRecord, name: str, limit_s: float | None) -> bool:
    """The request's value is at most the limit, or undefined, or there is no limit for it."""
    value = SLO_VALUES[name](record)
    return value is None or limit_s is None or value <= limit_s


def _limit(record: GoodputRecord, name: str, slos: Mapping[str, float]) -> float | None:
    return record.slos_s.get(name, slos.get(name))
