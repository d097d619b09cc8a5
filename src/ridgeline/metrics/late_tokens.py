"""Why was this token late? Causes out of the event log, the largest first; "unknown" where it has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.core import events as ev
from ridgeline.metrics.durations import icl_s, queue_s, tokenize_s, ttft_s
from ridgeline.metrics.percentiles import percentile
from ridgeline.metrics.server_record import ServerRecord

DEFAULT_TOP = 10
_LEAST_SHARE = 0.1
_GROWTH = 1.5


def late_tokens(
    events: Sequence[ev.Event],
    record: ServerRecord,
    *,
    top: int = DEFAULT_TOP,
    ttft_slo_s: float | None = None,
) -> list[dict[str, Any]]:
    """Entries {token, kind, seconds, cause, …} of the request's `top` longest gaps and of its first token.

    A token (0 is the first) has one entry for each cause that took at least a tenth of its time, the largest
    first. The first token is looked at when its TTFT exceeds the limit, or when no limit is given. `share` is
    the part of the token's time, where the log tells it; a prefill's is that of its tokens in the step.
    """
    found: list[dict[str, Any]] = []
    first_s = ttft_s(record)
    if first_s is not None and (ttft_slo_s is None or first_s > ttft_slo_s):
        found += _entries(0, "ttft", first_s, _first_causes(events, record))
    gaps = icl_s(record)
    order = sorted(range(len(gaps)), key=lambda index: gaps[index], reverse=True)[:top]
    usual_s = percentile(gaps, 50) or 0.0
    for index in order:
        token = sum(chunk.num_tokens for chunk in record.chunks[: index + 1])
        start_s, end_s = record.chunks[index].at_s, record.chunks[index + 1].at_s
        causes = _gap_causes(events, record, (start_s, end_s), usual_s)
        found += _entries(token, "itl", gaps[index], causes)
    return found


def _entries(token: int, kind: str, seconds: float, causes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for cause in causes:
        if "seconds" in cause:
            cause["share"] = cause.pop("seconds") / seconds if seconds > 0 else 0.0
    told = [cause for cause in causes if cause.get("share", 1.0) >= _LEAST_SHARE]
    told.sort(key=lambda cause: cause.get("share", 0.0), reverse=True)
    told = told or [{"cause": "unknown", "text": "the log shows nothing that held it up"}]
    return [{"token": token, "kind": kind, "ms": 1000 * seconds, **cause} for cause in told]


def _first_causes(events: Sequence[ev.Event], record: ServerRecord) -> list[dict[str, Any]]:
    causes: list[dict[str, Any]] = []
    before_s, waited_s = tokenize_s(record), queue_s(record)
    if before_s:
        causes.append(
            {
                "cause": "tokenizer",
                "seconds": before_s,
                "text": f"{1000 * before_s:.1f} ms to parse and tokenise {record.num_prompt_tokens} tokens",
            }
        )
    if waited_s:
        holders = _running_at(events, record)
        others = (
            f"behind {len(holders)} that ran: {', '.join(holders[:8])}"
            if holders
            else "for the step under way"
        )
        causes.append(
            {
                "cause": "queue",
                "seconds": waited_s,
                "behind": holders,
                "text": f"waited {1000 * waited_s:.1f} ms {others}",
            }
        )
    if record.scheduled_at_s is not None:
        span = record.scheduled_at_s, record.chunks[0].at_s
        causes += _preemption_causes(events, record, span)
        shared = _prefill_causes(events, record, span)
        causes += shared
        own = record.num_prompt_tokens - record.num_cached_tokens
        rest_s = span[1] - span[0] - sum(cause["seconds"] for cause in shared)
        text = f"computing its own {own} prompt tokens"
        causes.append({"cause": "prefill", "seconds": max(rest_s, 0.0), "num_tokens": own, "text": text})
    return causes


def _gap_causes(
    events: Sequence[ev.Event], record: ServerRecord, span: tuple[float, float], usual_s: float
) -> list[dict[str, Any]]:
    causes = [
        *_preemption_causes(events, record, span),
        *_prefill_causes(events, record, span),
        *_backpressure_causes(events, record, span),
    ]
    growth = _batch_growth(events, record, span)
    if growth is not None:
        causes.append(growth)
    inside = [s for s in _steps_in(events, span) if any(row[0] == record.request_id for row in s.composition)]
    outside_s = span[1] - span[0] - sum(step.execute_s for step in inside)
    if outside_s > max(usual_s / 2, 0.0) and not any(cause["cause"] == "preempted" for cause in causes):
        text = f"{1000 * outside_s:.1f} ms passed outside the steps that it took part in"
        causes.append({"cause": "outside_step", "seconds": outside_s, "text": text})
    return causes


def _preemption_causes(
    events: Sequence[ev.Event], record: ServerRecord, span: tuple[float, float]
) -> list[dict[str, Any]]:
    """Its blocks were taken: from then until it was admitted again, or the token came."""
    causes: list[dict[str, Any]] = []
    for event in events:
        if not isinstance(event, ev.RequestPreempted) or event.request_id != record.request_id:
            continue
        if span[0] <= event.at_s < span[1]:
            again = next((end for start, end in record.preemptions if start == event.at_s), span[1])
            who = "itself, the newest" if event.displaced_by == record.request_id else event.displaced_by
            text = f"lost its blocks to {who}; {event.num_computed_tokens} tokens to compute again"
            causes.append(
                {
                    "cause": "preempted",
                    "seconds": min(again, span[1]) - event.at_s,
                    "by": event.displaced_by,
                    "num_tokens": event.num_computed_tokens,
                    "text": text,
                }
            )
    return causes


def _prefill_causes(
    events: Sequence[ev.Event], record: ServerRecord, span: tuple[float, float]
) -> list[dict[str, Any]]:
    """Others' prompts in the same steps; their part of a step's time by their part of its tokens."""
    tokens: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for step in _steps_in(events, span):
        num_tokens = sum(count for *_, count in step.composition)
        if not any(request_id == record.request_id for request_id, *_ in step.composition):
            continue
        for request_id, _, count in step.composition:
            if request_id != record.request_id and count > 1:
                tokens[request_id] = tokens.get(request_id, 0) + count
                took_s = min(step.execute_s, span[1] - span[0])
                seconds[request_id] = seconds.get(request_id, 0.0) + took_s * count / num_tokens
    return [
        {
            "cause": "shared_prefill",
            "seconds": took_s,
            "by": request_id,
            "num_tokens": tokens[request_id],
            "text": f"shared its step with {tokens[request_id]} prompt tokens of {request_id}",
        }
        for request_id, took_s in seconds.items()
    ]


def _backpressure_causes(
    events: Sequence[ev.Event], record: ServerRecord, span: tuple[float, float]
) -> list[dict[str, Any]]:
    """The client read too slowly: the token was merged with others that it had not fetched."""
    merged = [
        event.num_tokens
        for event in events
        if isinstance(event, ev.DeltasCoalesced)
        and event.request_id == record.request_id
        and span[0] < event.at_s
        and _num_tokens_between(record, span[1], event.at_s) < event.num_tokens
    ]
    if not merged:
        return []
    text = f"the client reads slowly: {max(merged)} tokens were sent as one"
    return [{"cause": "client_backpressure", "num_tokens": max(merged), "text": text}]


def _num_tokens_between(record: ServerRecord, start_s: float, end_s: float) -> int:
    """Tokens that came later than `start_s`, `end_s` included."""
    return sum(chunk.num_tokens for chunk in record.chunks if start_s < chunk.at_s <= end_s)


def _batch_growth(
    events: Sequence[ev.Event], record: ServerRecord, span: tuple[float, float]
) -> dict[str, Any] | None:
    """More requests decode in its step than in the one before."""
    mine = [
        event
        for event in events
        if isinstance(event, ev.StepFinished)
        and event.at_s <= span[1]
        and any(row[0] == record.request_id for row in event.composition)
    ]
    if len(mine) < 2 or mine[-1].execute_s <= mine[-2].execute_s:
        return None
    before, now = (sum(count == 1 for *_, count in step.composition) for step in mine[-2:])
    if before == 0 or now / before < _GROWTH:
        return None
    return {
        "cause": "batch_growth",
        "seconds": mine[-1].execute_s - mine[-2].execute_s,
        "text": f"{now} requests decoded in its step instead of {before}",
    }


def _running_at(events: Sequence[ev.Event], record: ServerRecord) -> list[str]:
    """Requests that had been admitted and not ended when this one began to wait, in that order."""
    running: dict[str, None] = {}
    for event in events:
        if record.queued_at_s is None or event.at_s > record.queued_at_s:
            break
        if isinstance(event, ev.RequestScheduled):
            running[event.request_id] = None
        elif isinstance(event, ev.RequestPreempted | ev.RequestFinished):
            running.pop(event.request_id, None)
    running.pop(record.request_id, None)
    return list(running)


def _steps_in(events: Sequence[ev.Event], span: tuple[float, float]) -> list[ev.StepFinished]:
    """Steps that ended in the span, its start left out."""
    return [e for e in events if isinstance(e, ev.StepFinished) and span[0] < e.at_s <= span[1]]
