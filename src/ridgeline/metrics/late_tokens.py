"""Why was this token late? Causes out of the event log, the largest first; "unknown" where it has none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ridgeline.core import events as ev
from ridgeline.metrics.durations import icl_s, queue_s, tokenize_s, ttft_s
from ridgeline.metrics.percentiles import percentile
from ridgeline.metrics.queue_wait import LACK_WORDS, wait_by_lack_s
from ridgeline.metrics.server_record import ServerRecord
from ridgeline.metrics.step_shares import decode_step_near, prompt_rows, prompt_seconds

DEFAULT_TOP = 10
_LEAST_SHARE = 0.1
_GROWTH = 1.5
_MAX_NAMED = 8


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
    the part of the token's time, where the log tells it; a prefill's is what it was predicted to add.
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
        causes += _causes_before_queue(events, record, before_s)
    if waited_s:
        causes.append(_queue_cause(events, record, waited_s))
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


def _causes_before_queue(
    events: Sequence[ev.Event], record: ServerRecord, before_s: float
) -> list[dict[str, Any]]:
    """New requests are taken in between steps: it waits for the end of the one that it came into, however
    fast it is tokenised; what is left after that is the tokeniser's.
    """
    causes: list[dict[str, Any]] = []
    step = _step_at(events, record.arrived_at_s)
    if step is not None:
        step_s = min(step.at_s - record.arrived_at_s, before_s)
        before_s -= step_s
        num_tokens = sum(count for *_, count in step.composition)
        text = (
            f"came {1000 * step_s:.1f} ms before the end of a step of {num_tokens} tokens of "
            f"{len(step.composition)} requests"
        )
        causes.append({"cause": "step_under_way", "seconds": step_s, "num_tokens": num_tokens, "text": text})
    if before_s > 0:
        text = f"{1000 * before_s:.1f} ms to parse and tokenise {record.num_prompt_tokens} tokens"
        causes.append({"cause": "tokenizer", "seconds": before_s, "text": text})
    return causes


def _queue_cause(events: Sequence[ev.Event], record: ServerRecord, waited_s: float) -> dict[str, Any]:
    holders = _running_at(events, record)
    lacks = wait_by_lack_s(events, record)
    parts = [f"{1000 * seconds:.1f} ms for {LACK_WORDS[lack]}" for lack, seconds in lacks.items()]
    if not parts and not holders:
        parts = ["for the step under way"]
    if holders:
        parts.append(f"behind {len(holders)} that ran: {', '.join(holders[:_MAX_NAMED])}")
    return {
        "cause": "queue",
        "seconds": waited_s,
        "behind": holders,
        "lack": next(iter(lacks), None),
        "lacks_ms": {lack: 1000 * seconds for lack, seconds in lacks.items()},
        "text": f"waited {1000 * waited_s:.1f} ms: {', '.join(parts)}",
    }


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
    """Others' prompts in the same steps, by the time that they are predicted to have added."""
    tokens: defaultdict[str, int] = defaultdict(int)
    seconds: defaultdict[str, float] = defaultdict(float)
    steps = [event for event in events if isinstance(event, ev.StepFinished)]
    is_predicted = True
    for index, step in enumerate(steps):
        if not span[0] < step.at_s <= span[1]:
            continue
        prompts = {name: count for name, _, count in prompt_rows(step) if name != record.request_id}
        if not prompts or not any(row[0] == record.request_id for row in step.composition):
            continue
        is_predicted = is_predicted and bool(step.predicted_op_s)
        added_s = prompt_seconds(step, decode_step_near(steps, index))
        within = min(1.0, (span[1] - span[0]) / step.execute_s) if step.execute_s > 0 else 0.0
        for request_id, count in prompts.items():
            tokens[request_id] += count
            seconds[request_id] += within * added_s[request_id]
    how = "predicted to add" if is_predicted else "by tokens"
    return [
        {
            "cause": "shared_prefill",
            "seconds": took_s,
            "by": request_id,
            "num_tokens": tokens[request_id],
            "weighed_by": "prediction" if is_predicted else "tokens",
            "text": f"shared its step with {tokens[request_id]} prompt tokens of {request_id}: "
            f"{1000 * took_s:.1f} ms, {how}",
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


def _step_at(events: Sequence[ev.Event], at_s: float) -> ev.StepFinished | None:
    """The step that ran at that instant."""
    steps = (event for event in events if isinstance(event, ev.StepFinished))
    return next((step for step in steps if step.at_s - step.execute_s < at_s < step.at_s), None)


def _steps_in(events: Sequence[ev.Event], span: tuple[float, float]) -> list[ev.StepFinished]:
    """Steps that ended in the span, its start left out."""
    return [e for e in events if isinstance(e, ev.StepFinished) and span[0] < e.at_s <= span[1]]
