"""A run's result as JSON: vLLM's keys with vLLM's quantities, ours beside them; undefined is null."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ridgeline.config.checks import check_one_of
from ridgeline.errors import ConfigError
from ridgeline.loadgen.benchmark import LoadPlan, describe_prompts
from ridgeline.loadgen.counts import CountedRecords, chunk_tokens, count_tokens, prompt_mismatch
from ridgeline.loadgen.run import LoadRun
from ridgeline.loadgen.server_account import ServerAccount
from ridgeline.loadgen.validity import invalid_reason, shaped_by
from ridgeline.loadgen.vllm_keys import (
    DETAIL_KEYS,
    METRICS,
    detail_keys,
    metric_keys,
    metric_values_s,
    probe_keys,
    sent_e2e_s,
    totals,
)
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.durations import e2e_s, icl_s, itl_s, lateness_s, tpot_s, ttft_s
from ridgeline.metrics.percentiles import summarize
from ridgeline.metrics.run_metrics import throughput
from ridgeline.metrics.slo import goodput


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """What a result holds. `slos` in seconds; `percentile_metrics` and `metric_percentiles` as vLLM's."""

    slos: Mapping[str, float] = field(default_factory=dict)
    percentile_metrics: Sequence[str] = ("ttft", "tpot", "itl")
    metric_percentiles: Sequence[float] = (99.0,)
    save_detailed: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    label: str | None = None

    def __post_init__(self) -> None:
        for name in self.percentile_metrics:
            check_one_of("percentile_metrics", name, METRICS)
        for p in self.metric_percentiles:
            if not 0 <= p <= 100:
                raise ConfigError("metric_percentiles", p, "must lie in 0…100")


def load_result(
    plan: LoadPlan,
    run: LoadRun,
    report: ReportSettings,
    *,
    encode: Callable[[str], Sequence[int]] | None = None,
    conditions: Mapping[str, object] | None = None,
    server: ServerAccount | None = None,
) -> dict[str, Any]:
    """The document of docs/load-generator.md. `server` is what the server told of its requests, if it did."""
    counted = count_tokens(run.records, encode)
    records = counted.records
    duration_s = run.finished_at_s - run.started_at_s
    document = _set_up(plan, run, report) | totals(records, duration_s, report.slos)
    values = metric_values_s(records)
    chosen = {name: values[name] for name in METRICS if name in report.percentile_metrics}
    document |= metric_keys(chosen, report.metric_percentiles)
    if plan.traffic.probe_request_rate > 0:
        document |= probe_keys(run.probes)
    document["latencies"] = [sent_e2e_s(record) for record in records]
    document["queue_times"] = [lateness_s(record) for record in records]
    if report.save_detailed:
        document |= detail_keys(records, server.times if server else {})
    document |= _ours(plan, run, counted, report)
    document["conditions"] = dict(conditions or {})
    if server is not None:
        document["late_tokens"] = list(server.late_tokens)
    if report.save_detailed:
        document["requests"] = [_request(record, server) for record in records]
    return document


def without_detail(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same without what --save-detailed adds."""
    left_out = {*DETAIL_KEYS, "requests"}
    return {name: value for name, value in document.items() if name not in left_out}


def _set_up(plan: LoadPlan, run: LoadRun, report: ReportSettings) -> dict[str, Any]:
    traffic = plan.traffic
    document: dict[str, Any] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": plan.target.backend,
        "backend": plan.target.backend,
        "label": report.label,
        "model_id": plan.model,
        "tokenizer_id": plan.target.tokenizer or plan.model,
        "num_prompts": len(plan.requests),
        **report.metadata,
        "request_rate": _request_rate(plan),
        "burstiness": traffic.burstiness if math.isfinite(traffic.burstiness) else "inf",
        "max_concurrency": traffic.max_concurrency,
    }
    if traffic.ramp is not None:
        document |= {
            "ramp_up_strategy": traffic.ramp.strategy,
            "ramp_up_start_rps": traffic.ramp.start_rps,
            "ramp_up_end_rps": traffic.ramp.end_rps,
            "rps_change_events": _rate_changes(plan, run),
        }
    return document


def _request_rate(plan: LoadPlan) -> float | str:
    """The rate asked for; of a trace or a ramp its mean; "inf" for all at once."""
    if math.isfinite(plan.traffic.request_rate):
        return plan.traffic.request_rate
    last_s = max(plan.schedule.arrivals_s, default=0.0)
    return len(plan.requests) / last_s if last_s > 0 else "inf"


def _rate_changes(plan: LoadPlan, run: LoadRun) -> list[dict[str, object]]:
    """When the ramp's rate reached another whole number, as wall time."""
    ramp, count = plan.traffic.ramp, len(plan.requests)
    assert ramp is not None
    started = time.time() - (time.monotonic() - run.started_at_s)
    events: list[dict[str, object]] = []
    known: int | None = None
    for index, arrival_s in enumerate(plan.schedule.arrivals_s):
        rps = int(ramp.rate(index, count))
        if rps != known:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started + arrival_s))
            events.append({"rps": rps, "timestamp": stamp})
            known = rps
    return events


def _ours(plan: LoadPlan, run: LoadRun, counted: CountedRecords, report: ReportSettings) -> dict[str, Any]:
    records = counted.records
    ok = [record for record in records if record.outcome is Outcome.OK]
    first_s = min((record.scheduled_at_s for record in records), default=run.started_at_s)
    window_s = run.finished_at_s - first_s
    ttfts = [value for record in ok if (value := ttft_s(record)) is not None]
    waits = [value for record in records if (value := lateness_s(record)) is not None]
    is_capped = plan.traffic.max_concurrency is not None
    # Under a cap the wait for a place is the load's own; the generator answers for its part of it only.
    own_s = run.dispatch_lateness_s if is_capped else waits
    reason = invalid_reason(own_s, ttfts, is_capped=is_capped)
    how, surplus = chunk_tokens(records)
    return {
        "goodput": _goodput(records, report.slos, window_s),
        "ridgeline": _summaries(ok, records),
        "rates": _rates(records, window_s),
        "failures": {kind.value: n for kind, n in sorted(_failures(records).items())},
        "failure_reasons": _reasons(records),
        "valid": reason is None,
        "invalid_because": reason,
        "shaped_by": None if plan.schedule.is_closed else shaped_by(waits, plan.traffic.max_concurrency),
        "token_count_source": counted.source,
        "chunk_tokens": how,
        "chunk_tokens_surplus": surplus,
        "requested_input_tokens": _total(record.num_requested_prompt_tokens for record in records),
        "prompt_mismatch": prompt_mismatch(ok),
        "cached_tokens": _total(record.num_cached_tokens for record in ok),
        "prompts_sent_as": describe_prompts(plan),
        "loop": "closed" if plan.schedule.is_closed else "open",
        "num_warmups": len(plan.warmups),
        "num_not_sent": run.num_not_sent,
        "interrupted": run.was_interrupted,
        "dataset": plan.dataset.name,
        "seed": plan.traffic.seed,
        "notes": list(plan.notes),
    }


def _summaries(ok: Sequence[ClientRecord], records: Sequence[ClientRecord]) -> dict[str, object]:
    """Ours, from the scheduled instant, in ms; lateness is that of every request sent."""
    values: dict[str, list[float | None]] = {
        "ttft_ms": [ttft_s(record) for record in ok],
        "tpot_ms": [tpot_s(record) for record in ok],
        "itl_ms": [gap for record in ok for gap in itl_s(record)],
        "icl_ms": [gap for record in ok for gap in icl_s(record)],
        "e2e_ms": [e2e_s(record) for record in ok],
        "lateness_ms": [lateness_s(record) for record in records],
    }
    return {name: _summary(each) for name, each in values.items()}


def _summary(values_s: Sequence[float | None]) -> dict[str, object]:
    found = summarize([1000 * value for value in values_s if value is not None])
    names = ("n", "mean", "p50", "p90", "p95", "p99", "p999", "max", "std", "low_n", "low_n_p999")
    return {name: getattr(found, name) for name in names}


def _goodput(records: Sequence[ClientRecord], slos: Mapping[str, float], window_s: float) -> object:
    if not slos and not any(record.slos_s for record in records):
        return None
    found = goodput(records, slos, window_s)
    return {
        "slo": {name: 1000 * limit for name, limit in slos.items()},
        "rate": found.rate,
        "attainment": found.attainment,
        "attainment_by_slo": dict(found.attainment_by_slo),
        "slo_undefined": dict(found.undefined),
    }


def _rates(records: Sequence[ClientRecord], window_s: float) -> dict[str, float | None]:
    """Over our window, first scheduled send to the last end; `computed` leaves cached tokens out."""
    return {"window_s": window_s} | asdict(throughput(records, window_s))


def _failures(records: Sequence[ClientRecord]) -> Counter[Outcome]:
    return Counter(record.outcome for record in records if record.outcome is not Outcome.OK)


def _reasons(records: Sequence[ClientRecord]) -> dict[str, int]:
    """The ten most frequent reasons."""
    reasons = Counter(str(record.error) for record in records if record.outcome is not Outcome.OK)
    return dict(reasons.most_common(10))


def _total(counts: Iterable[int | None]) -> int | None:
    """Their sum; None when none is known."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _request(record: ClientRecord, server: ServerAccount | None) -> dict[str, object]:
    document: dict[str, object] = {
        "id": record.request_id,
        "scheduled_s": record.scheduled_at_s,
        "sent_s": record.sent_at_s,
        "chunks": [[chunk.at_s, chunk.num_tokens] for chunk in record.chunks],
        "closed_s": record.closed_at_s,
        "prompt_tokens": record.num_prompt_tokens,
        "completion_tokens": record.num_output_tokens,
        "cached_tokens": record.num_cached_tokens,
        "finish_reason": record.finish_reason,
        "outcome": record.outcome.value,
        "error": record.error,
        "server": server.times.get(record.request_id) if server else None,
    }
    if record.slos_s:
        document["slo_ms"] = {name: 1000 * limit for name, limit in record.slos_s.items()}
    return document
