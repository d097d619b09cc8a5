"""What happened to one request, step by step, and why its late tokens were late: folds of the event log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.core import events as ev
from ridgeline.metrics.durations import (
    decode_s,
    e2e_s,
    preempted_s,
    prefill_s,
    queue_s,
    tokenize_s,
    tpot_s,
    ttft_s,
)
from ridgeline.metrics.late_tokens import late_tokens
from ridgeline.metrics.server_record import server_records

_Told = (
    ev.RequestArrived | ev.RequestScheduled | ev.RequestPreempted | ev.RequestFinished | ev.DeltasCoalesced
)


def request_timeline(
    events: Sequence[ev.Event], request_id: str, *, ttft_slo_s: float | None = None
) -> dict[str, Any] | None:
    """The document of `/debug/requests/{id}`; None: the log does not know the request.

    Durations are seconds, null where undefined; instants are seconds after the arrival. Of a request with
    several choices each is looked up by its own id.
    """
    record = next((r for r in reversed(server_records(events)) if r.request_id == request_id), None)
    if record is None:
        return None
    start_s = record.arrived_at_s
    return {
        "request_id": request_id,
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "completion_tokens": record.num_output_tokens,
        "finish_reason": record.finish_reason,
        "num_preemptions": record.num_preemptions,
        "ttft_s": ttft_s(record),
        "tpot_s": tpot_s(record),
        "e2e_s": e2e_s(record),
        "tokenize_s": tokenize_s(record),
        "queue_s": queue_s(record),
        "prefill_s": prefill_s(record),
        "decode_s": decode_s(record),
        "preempted_s": preempted_s(record),
        "happenings": [_happening(event, start_s) for event in _own(events, request_id)],
        "steps": [_step(event, request_id, start_s) for event in _steps(events, request_id)],
        "late_tokens": late_tokens(events, record, ttft_slo_s=ttft_slo_s),
    }


def _own(events: Sequence[ev.Event], request_id: str) -> list[_Told]:
    return [event for event in events if isinstance(event, _Told) and event.request_id == request_id]


def _happening(event: _Told, start_s: float) -> dict[str, Any]:
    told: dict[str, Any] = {"at_s": event.at_s - start_s}
    if isinstance(event, ev.RequestArrived):
        return told | {"what": "queued"}
    if isinstance(event, ev.RequestScheduled):
        return told | {
            "what": "scheduled again" if event.resumed else "scheduled",
            "cached_tokens": event.num_cached_tokens,
        }
    if isinstance(event, ev.RequestPreempted):
        return told | {
            "what": "preempted",
            "by": event.displaced_by,
            "num_computed_tokens": event.num_computed_tokens,
        }
    if isinstance(event, ev.DeltasCoalesced):
        return told | {"what": "deltas coalesced", "num_tokens": event.num_tokens}
    return told | {"what": "finished", "finish_reason": event.finish_reason}


def _steps(events: Sequence[ev.Event], request_id: str) -> list[ev.StepFinished]:
    return [
        event
        for event in events
        if isinstance(event, ev.StepFinished) and any(row[0] == request_id for row in event.composition)
    ]


def _step(step: ev.StepFinished, request_id: str, start_s: float) -> dict[str, Any]:
    """Who shared the step: their scheduled tokens by id. `predicted_s` is null on an uncalibrated machine."""
    rows = {row[0]: row for row in step.composition}
    _, num_computed, num_scheduled = rows.pop(request_id)
    return {
        "step_id": step.step_id,
        "ended_at_s": step.at_s - start_s,
        "execute_s": step.execute_s,
        "predicted_s": sum(step.predicted_op_s.values()) if step.predicted_op_s is not None else None,
        "num_computed_tokens": num_computed,
        "num_scheduled_tokens": num_scheduled,
        "shared_with": {other: row[2] for other, row in rows.items()},
    }
