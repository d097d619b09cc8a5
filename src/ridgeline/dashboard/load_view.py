"""What a page draws of a load run: plain lists, thinned out so that a browser keeps up.

Latencies in ms from the scheduled instant, times in s from the run's first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.durations import e2e_s, icl_s, itl_s, tpot_s, ttft_s

MAX_CURVE_POINTS = 400
MAX_POINTS = 3000
MAX_BARS = 100
_NUM_EXTREMES = 500
_FLOOR_MS = 0.01  # a logarithmic axis has no zero


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPageRun:
    """One run for a page: its result document, its records, and the server's times by request id, if any.

    `server_times` have `queue_s`, `prefill_s` and `decode_s`, each null where undefined.
    """

    name: str
    document: Mapping[str, Any]
    records: Sequence[ClientRecord]
    server_times: Mapping[str, Mapping[str, float | None]]


def run_view(run: LoadPageRun) -> dict[str, Any]:
    """Curves, points and bars of one run."""
    records = run.records
    started_s = min((record.scheduled_at_s for record in records), default=0.0)
    found = run.document["goodput"]
    return {
        "label": rate_label(run.document),
        "slo": dict(found["slo"]) if found else {},
        "cdf": _cdfs(records),
        "ttft": _ttft_points(records, started_s),
        "itl": _gap_points(records, started_s),
        "gantt": _bars(run, started_s),
    }


def rate_label(document: Mapping[str, Any]) -> str:
    """The load as a word: its rate, or how it was closed."""
    rate, cap = document["request_rate"], document.get("max_concurrency")
    if rate == "inf":
        return f"{cap} at a time" if cap else "all at once"
    return f"{rate:.4g} req/s"


def _cdfs(records: Sequence[ClientRecord]) -> dict[str, object]:
    """A failed request has no latency and never comes down: its share keeps the curve below 1."""
    ok = [record for record in records if record.outcome is Outcome.OK]
    num_failed = len(records) - len(ok)
    each = {
        "ttft": [ttft_s(record) for record in ok],
        "tpot": [tpot_s(record) for record in ok],
        "e2e": [e2e_s(record) for record in ok],
    }
    gaps = sorted(1000 * gap for record in ok for gap in itl_s(record))
    curves: dict[str, object] = {
        name: _cdf(sorted(1000 * v for v in values if v is not None), num_failed)
        for name, values in each.items()
    }
    return curves | {"itl": _cdf(gaps, 0)}


def _cdf(ordered_ms: Sequence[float], num_failed: int) -> dict[str, object]:
    n = len(ordered_ms)
    last = max(n - 1, 1)
    points = min(n, MAX_CURVE_POINTS)
    ranks = sorted({round(i * last / max(points - 1, 1)) for i in range(points)})
    return {
        "n": n,
        "x": [max(ordered_ms[rank], _FLOOR_MS) for rank in ranks],
        "y": [(rank + 1) / (n + num_failed) for rank in ranks],
    }


def _ttft_points(records: Sequence[ClientRecord], started_s: float) -> dict[str, object]:
    """First tokens of good requests; failed ones at the time from their schedule to their end."""
    ok = [(r, value) for r in records if r.outcome is Outcome.OK and (value := ttft_s(r)) is not None]
    failed = [record for record in records if record.outcome is not Outcome.OK]
    kept = thin_out([value for _, value in ok])
    kept_failed = thin_out([_end_s(record) for record in failed])
    return {
        "n": len(ok),
        "t": [ok[i][0].scheduled_at_s - started_s for i in kept],
        "ms": [1000 * ok[i][1] for i in kept],
        "id": [ok[i][0].request_id for i in kept],
        "n_failed": len(failed),
        "failed_t": [failed[i].scheduled_at_s - started_s for i in kept_failed],
        "failed_ms": [1000 * _end_s(failed[i]) for i in kept_failed],
        "failed_why": [f"{failed[i].outcome}: {failed[i].error or ''}"[:200] for i in kept_failed],
    }


def _gap_points(records: Sequence[ClientRecord], started_s: float) -> dict[str, object]:
    """Gaps between chunks (ICL) at their end: raw, so that a stall shows in full."""
    gaps: list[float] = []
    places: list[tuple[int, int]] = []
    for index, record in enumerate(records):
        own = icl_s(record) if record.outcome is Outcome.OK else []
        gaps += own
        places += [(index, number) for number in range(1, len(own) + 1)]
    kept = thin_out(gaps)
    chosen = [(records[places[i][0]], places[i][1]) for i in kept]
    return {
        "n": len(gaps),
        "t": [record.chunks[number].at_s - started_s for record, number in chosen],
        "ms": [max(1000 * gaps[i], _FLOOR_MS) for i in kept],
        "id": [f"{record.request_id}, chunk {number}" for record, number in chosen],
    }


def thin_out(values: Sequence[float], limit: int = MAX_POINTS) -> list[int]:
    """Indices of at most `limit` values: all, or the 500 largest and every k-th of the others."""
    if len(values) <= limit:
        return list(range(len(values)))
    by_size = sorted(range(len(values)), key=values.__getitem__)
    num_extremes = min(_NUM_EXTREMES, limit // 2)
    extremes, others = by_size[-num_extremes:], sorted(by_size[:-num_extremes])
    step = -(-len(others) // (limit - num_extremes))
    return sorted([*extremes, *others[::step]])


def _bars(run: LoadPageRun, started_s: float) -> dict[str, object]:
    """All requests, or those around the latest first token: neighbours show who waited for whom."""
    records = run.records
    latest = max(range(len(records)), key=lambda i: ttft_s(records[i]) or 0.0, default=0)
    start = max(min(latest - MAX_BARS // 2, len(records) - MAX_BARS), 0)
    shown = records[start : start + MAX_BARS]
    return {
        "n": len(records),
        "num_shown": len(shown),
        "has_queue": any(_server(run, record, "queue_s") is not None for record in shown),
        "rows": [_bar(run, record, started_s) for record in shown],
    }


def _bar(run: LoadPageRun, record: ClientRecord, started_s: float) -> dict[str, object]:
    sent_s = record.scheduled_at_s if record.sent_at_s is None else record.sent_at_s
    end_s = record.scheduled_at_s + _end_s(record)
    first_s = record.chunks[0].at_s if record.chunks else end_s
    # The server's clock is another: of it only a duration is taken, and laid right behind the send.
    queue_s = min(_server(run, record, "queue_s") or 0.0, max(first_s - sent_s, 0.0))
    is_ok = record.outcome is Outcome.OK
    return {
        "id": record.request_id,
        "start": record.scheduled_at_s - started_s,
        "wait": sent_s - record.scheduled_at_s,
        "queue": queue_s,
        "first": max(first_s - sent_s - queue_s, 0.0) if is_ok or record.chunks else 0.0,
        "decode": max(end_s - first_s, 0.0) if is_ok else 0.0,
        "failed": 0.0 if is_ok else max(end_s - (first_s if record.chunks else sent_s + queue_s), 0.0),
        "text": f"{record.num_prompt_tokens or '?'} + {record.num_output_tokens or 0} tokens"
        if is_ok
        else f"{record.outcome}: {record.error or ''}"[:200],
    }


def _server(run: LoadPageRun, record: ClientRecord, name: str) -> float | None:
    return run.server_times.get(record.request_id, {}).get(name)


def _end_s(record: ClientRecord) -> float:
    """From the schedule to the last token; of a failed request to its close."""
    if record.outcome is Outcome.OK and record.chunks:
        return record.chunks[-1].at_s - record.scheduled_at_s
    instants = [record.closed_at_s, record.chunks[-1].at_s if record.chunks else None, record.sent_at_s]
    end_s = next((instant for instant in instants if instant is not None), record.scheduled_at_s)
    return max(end_s - record.scheduled_at_s, 0.0)
