"""Two runs against each other: differences with intervals, and a warning where they were not alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from ridgeline.config.checks import check_at_least
from ridgeline.errors import ConfigError
from ridgeline.loadgen.capacity_fit import share_interval
from ridgeline.loadgen.resampling import (
    Floats,
    GapSample,
    RequestSample,
    block_rates,
    interval,
    num_resamples,
)
from ridgeline.loadgen.stored_result import StoredRun, need_records
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.durations import e2e_s, icl_s, itl_s, tpot_s, ttft_s
from ridgeline.metrics.percentiles import MIN_N_P99
from ridgeline.metrics.slo import goodput

NO_DIFFERENCE, TOO_FEW = "no difference shown", "too few values"
_MIN_VALUES = 10
_MIN_STRETCHES = 8
_STATISTICS: Sequence[tuple[str, float | None]] = (
    ("mean", None),
    ("p50", 50.0),
    ("p90", 90.0),
    ("p99", 99.0),
)
_CONDITIONS = (
    *("model_id", "backend", "dataset", "seed", "num_prompts", "request_rate", "burstiness"),
    *("max_concurrency", "loop", "requested_input_tokens", "num_warmups", "prompts_sent_as"),
)
_MACHINE = ("cpu", "threads", "cgroup_quota", "versions")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """Level of the intervals, number and seed of resamples, SLOs in seconds in place of the runs' own."""

    confidence: float = 0.95
    resamples: int = 2000
    seed: int = 0
    slos_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise ConfigError("confidence", self.confidence, "must lie in [0.5, 1)")
        check_at_least("resamples", self.resamples, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure of both runs, b − a with its interval, and what that says; None: not defined."""

    metric: str
    statistic: str
    unit: str
    n_a: int
    n_b: int
    a: float | None
    b: float | None
    low: float | None
    high: float | None
    verdict: str

    @property
    def difference(self) -> float | None:
        """B − a."""
        return None if self.a is None or self.b is None else self.b - self.a


class _Sample(Protocol):
    def statistic(self, p: float | None) -> float | None: ...
    def replicates(self, ps: Sequence[float | None], *, resamples: int, seed: int) -> Floats: ...


def compare_runs(a: StoredRun, b: StoredRun, settings: CompareSettings) -> dict[str, Any]:
    """The comparison as JSON; ICL only where it is not ITL by another name (a token a chunk).

    Raises:
        ConfigError: a run without its requests.
    """
    both = (need_records(a), need_records(b))
    ok = tuple([r for r in records if r.outcome is Outcome.OK] for records in both)
    rows: list[Difference] = []
    for name, value in (("TTFT", ttft_s), ("TPOT", tpot_s), ("E2E", e2e_s)):
        values = [[1000 * v for r in records if (v := value(r)) is not None] for records in ok]
        rows += _latency(name, [RequestSample(each) for each in values], [len(v) for v in values], settings)
    for name, gaps in (("ITL", itl_s), ("ICL", icl_s)):
        lists = [[[1000 * gap for gap in gaps(r)] for r in records] for records in ok]
        counts = [sum(map(len, each)) for each in lists]
        if name == "ITL" or any(len(r.chunks) < (r.num_output_tokens or 0) for each in ok for r in each):
            rows += _latency(name, [GapSample(each) for each in lists], counts, settings)
    rows += [_rate(name, ok, settings) for name in ("requests", "output tokens")]
    rows += _shares(a, b, settings)
    return {
        "a": _side(a),
        "b": _side(b),
        "confidence": settings.confidence,
        "resamples": settings.resamples,
        "seed": settings.seed,
        "warnings": differing_conditions(a, b),
        "differences": [{**asdict(row), "difference": row.difference} for row in rows],
    }


def differing_conditions(a: StoredRun, b: StoredRun) -> list[str]:
    """What makes the two no fair pair, a line each."""
    lines = [
        f"{name} differs: {a.document.get(name)!s} and {b.document.get(name)!s}"
        for name in _CONDITIONS
        if a.document.get(name) != b.document.get(name)
    ]
    machines = [run.document.get("conditions") or {} for run in (a, b)]
    lines += [
        f"the client's {name} differs: {machines[0].get(name)!s} and {machines[1].get(name)!s}"
        for name in _MACHINE
        if machines[0].get(name) != machines[1].get(name)
    ]
    for name, run in (("a", a), ("b", b)):
        if not run.document.get("valid", True):
            lines.append(f"{name} is not valid: {run.document.get('invalid_because')}")
        if run.document.get("interrupted"):
            lines.append(f"{name} was interrupted")
    return lines


def _latency(
    metric: str, samples: Sequence[_Sample], counts: Sequence[int], settings: CompareSettings
) -> list[Difference]:
    """Mean and percentiles, from one set of resamples."""
    ps = [p for _, p in _STATISTICS]
    gaps = None
    if min(counts) >= _MIN_VALUES:
        resamples = num_resamples(settings.resamples, max(counts))
        drawn = [
            each.replicates(ps, resamples=resamples, seed=2 * settings.seed + side)
            for side, each in enumerate(samples)
        ]
        usable = min(map(len, drawn))
        gaps = drawn[1][:usable] - drawn[0][:usable]
    rows = []
    for index, (name, p) in enumerate(_STATISTICS):
        # Between the two largest values lies whatever they happen to be: no interval tells of that.
        is_few = gaps is None or (p == 99 and min(counts) < MIN_N_P99)
        low, high = (None, None) if is_few or gaps is None else interval(gaps[:, index], settings.confidence)
        rows.append(
            Difference(
                metric=metric,
                statistic=name,
                unit="ms",
                n_a=counts[0],
                n_b=counts[1],
                a=samples[0].statistic(p),
                b=samples[1].statistic(p),
                low=low,
                high=high,
                verdict=_verdict(low, high),
            )
        )
    return rows


def _rate(name: str, ok: Sequence[Sequence[ClientRecord]], settings: CompareSettings) -> Difference:
    """Per second of the window, by stretches of time as long as a request at least."""
    sides = [_stretches(records, of_tokens=name != "requests") for records in ok]
    values = [sum(amounts) / len(amounts) if amounts else None for amounts in sides]
    low = high = None
    if min(map(len, sides)) >= _MIN_STRETCHES:
        drawn = [
            block_rates(amounts, resamples=settings.resamples, seed=2 * settings.seed + side)
            for side, amounts in enumerate(sides)
        ]
        low, high = interval(drawn[1] - drawn[0], settings.confidence)
    return Difference(
        metric=name,
        statistic="rate",
        unit="/s",
        n_a=len(sides[0]),
        n_b=len(sides[1]),
        a=values[0],
        b=values[1],
        low=low,
        high=high,
        verdict=_verdict(low, high),
    )


def _stretches(records: Sequence[ClientRecord], *, of_tokens: bool) -> list[float]:
    """Amount per second of each stretch from the first schedule to the last token."""
    ends = [record.chunks[-1].at_s for record in records if record.chunks]
    if not ends:
        return []
    start_s = min(record.scheduled_at_s for record in records)
    window_s = max(ends) - start_s
    mean_s = sum(end for record in records if (end := e2e_s(record)) is not None) / len(ends)
    count = max(min(int(window_s / max(mean_s, 0.5)), 60), 1)
    if window_s <= 0:
        return []
    amounts = [0.0] * count
    for record in records:
        events = [(c.at_s, c.num_tokens) for c in record.chunks] if of_tokens else []
        if not of_tokens and record.chunks:
            events = [(record.chunks[-1].at_s, 1)]
        for at_s, amount in events:
            amounts[min(math.floor((at_s - start_s) / window_s * count), count - 1)] += amount
    return [amount * count / window_s for amount in amounts]


def _shares(a: StoredRun, b: StoredRun, settings: CompareSettings) -> list[Difference]:
    """Failures, and attainment where there are SLOs; intervals by Newcombe's hybrid score (1998)."""
    both = (need_records(a), need_records(b))
    rows = [
        _share(
            "failed", [(sum(r.outcome is not Outcome.OK for r in each), len(each)) for each in both], settings
        )
    ]
    slos = [_slos(run, settings) for run in (a, b)]
    if slos[0] and slos[0] == slos[1]:
        found = [goodput(each, slos[0], 1.0).num_good for each in both]
        pairs = [(good, len(each)) for good, each in zip(found, both, strict=True)]
        rows.append(_share("meets all SLOs", pairs, settings))
    return rows


def _slos(run: StoredRun, settings: CompareSettings) -> Mapping[str, float]:
    own = (run.document.get("goodput") or {}).get("slo") or {}
    return settings.slos_s or {name: limit / 1000 for name, limit in own.items()}


def _share(name: str, counts: Sequence[tuple[int, int]], settings: CompareSettings) -> Difference:
    shares = [good / sent if sent else None for good, sent in counts]
    low = high = None
    if None not in shares:
        p, q = (share or 0.0 for share in shares)
        (low_a, high_a), (low_b, high_b) = (share_interval(*each, settings.confidence) for each in counts)
        low = 100 * (q - p - math.hypot(q - low_b, high_a - p))
        high = 100 * (q - p + math.hypot(high_b - q, p - low_a))
    percent = [None if share is None else 100 * share for share in shares]
    return Difference(
        metric=name,
        statistic="share",
        unit="%",
        n_a=counts[0][1],
        n_b=counts[1][1],
        a=percent[0],
        b=percent[1],
        low=low,
        high=high,
        verdict=_verdict(low, high),
    )


def _verdict(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return TOO_FEW
    return "b higher" if low > 0 else "b lower" if high < 0 else NO_DIFFERENCE


def _side(run: StoredRun) -> dict[str, object]:
    names = ("model_id", "request_rate", "dataset", "date", "completed", "failed", "valid")
    return {"name": run.name, **{name: run.document.get(name) for name in names}}


def comparison_lines(document: Mapping[str, Any]) -> list[str]:
    """The comparison for a terminal."""
    a, b, level = document["a"], document["b"], f"{100 * document['confidence']:g} %"
    lines = [f"a: {a['name']}, {a['model_id']}", f"b: {b['name']}, {b['model_id']}"]
    lines += [f"NOT ALIKE: {each}" for each in document["warnings"]]
    lines += ["", f"{'':22}{'n a':>8}{'n b':>8}{'a':>11}{'b':>11}{'b − a':>11}   {level} interval"]
    for row in document["differences"]:
        head = (
            f"{row['metric']} {row['statistic']}, {row['unit']}"
            if row["unit"] != "/s"
            else row["metric"] + "/s"
        )
        span = "–" if row["low"] is None else f"{row['low']:+,.2f}…{row['high']:+,.2f}"
        figures = "".join(_number(row[name]) for name in ("a", "b"))
        lines.append(
            f"{head:22}{row['n_a']:8,}{row['n_b']:8,}{figures}{_number(row['difference'], '+')}   "
            f"{span:20} {row['verdict']}"
        )
    count = sum(row["low"] is not None for row in document["differences"])
    chance = count * (1 - document["confidence"])
    return [
        *lines,
        "",
        f"{count} intervals at {level}: about {chance:.1f} would leave 0 out by chance alone.",
        "They hold for these two runs' requests (n of a rate: stretches of time). A server also differs",
        "from one run to the next, so compare repeats too.",
    ]


def _number(value: float | None, sign: str = "") -> str:
    return f"{'–' if value is None else format(value, sign + ',.2f'):>11}"
