"""The figures of a whole run from its records, whoever kept them: rates, summaries, failures, goodput."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ridgeline.metrics.client_record import Outcome
from ridgeline.metrics.durations import e2e_s, icl_s, itl_s, tpot_s, ttft_s
from ridgeline.metrics.percentiles import Summary, summarize
from ridgeline.metrics.slo import Goodput, GoodputRecord, goodput


class CountedRecord(GoodputRecord, Protocol):
    """A record with its token counts: a client's or the server's."""

    @property
    def num_prompt_tokens(self) -> int | None:
        """P, cached ones included."""
        ...

    @property
    def num_cached_tokens(self) -> int | None:
        """C, prompt tokens that needed no computing."""
        ...


@dataclass(frozen=True, slots=True)
class Throughput:
    """Amounts a second of the window; all but `received` are of good requests only.

    requests: their number; output: N; total: P + N; computed: P − C + N, as cached tokens are no work done;
    received: every token that came, those of failed and cut requests too. None for a window of no time.
    """

    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    computed_tokens_per_s: float | None
    received_tokens_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetrics:
    """Summaries in seconds over the good requests; every other one is counted by its kind in `failures`.

    `num_unfinished` had not ended when the records were taken.
    """

    window_s: float
    num_requests: int
    num_ok: int
    num_unfinished: int
    failures: Mapping[Outcome, int]
    throughput: Throughput
    ttft: Summary
    tpot: Summary
    itl: Summary
    icl: Summary
    e2e: Summary
    goodput: Goodput


def run_metrics(
    records: Sequence[CountedRecord],
    started_at_s: float,
    *,
    finished_at_s: float,
    slos: Mapping[str, float] | None = None,
) -> RunMetrics:
    """All figures of a run between two instants of the records' clock; `slos` in seconds by name."""
    window_s = finished_at_s - started_at_s
    assert window_s >= 0, "a run that ends before it starts"
    ok = [record for record in records if record.outcome is Outcome.OK]
    outcomes = Counter(record.outcome for record in records)
    return RunMetrics(
        window_s=window_s,
        num_requests=len(records),
        num_ok=len(ok),
        num_unfinished=outcomes[None],
        failures={kind: n for kind, n in outcomes.items() if kind is not None and kind is not Outcome.OK},
        throughput=throughput(records, window_s),
        ttft=summarize([value for record in ok if (value := ttft_s(record)) is not None]),
        tpot=summarize([value for record in ok if (value := tpot_s(record)) is not None]),
        itl=summarize([gap for record in ok for gap in itl_s(record)]),
        icl=summarize([gap for record in ok for gap in icl_s(record)]),
        e2e=summarize([value for record in ok if (value := e2e_s(record)) is not None]),
        goodput=goodput(records, slos or {}, window_s),
    )


def throughput(records: Sequence[CountedRecord], window_s: float) -> Throughput:
    """Rates over the window. The sum over a partition of the records is the rate of all."""
    ok = [record for record in records if record.outcome is Outcome.OK]
    prompts = sum(record.num_prompt_tokens or 0 for record in ok)
    outputs = sum(record.num_output_tokens or 0 for record in ok)
    cached = sum(record.num_cached_tokens or 0 for record in ok)
    received = sum(chunk.num_tokens for record in records for chunk in record.chunks)
    amounts = (len(ok), outputs, prompts + outputs, prompts + outputs - cached, received)
    if window_s <= 0:
        return Throughput(None, None, None, None, None)
    return Throughput(*(amount / window_s for amount in amounts))
