"""RequestMetrics of what `LLM` gives back, from the record of the request."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.core.request import Request
from ridgeline.metrics.durations import (
    Chunk,
    decode_s,
    e2e_s,
    itl_s,
    prefill_s,
    queue_s,
    tpot_s,
    ttft_s,
)
from ridgeline.metrics.server_record import ServerRecord
from ridgeline.outputs import RequestMetrics


def request_metrics(request: Request, token_times_s: Sequence[float]) -> RequestMetrics:
    """Durations of one request; `token_times_s` are the emissions of its tokens."""
    record = ServerRecord(
        request_id=request.request_id,
        arrived_at_s=request.arrived_at_s,
        queued_at_s=request.queued_at_s,
        num_prompt_tokens=request.num_prompt_tokens,
        scheduled_at_s=request.scheduled_at_s,
        chunks=[Chunk(at_s, 1) for at_s in token_times_s],
    )
    return RequestMetrics(
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_output_tokens=len(token_times_s),
        num_preemptions=request.num_preemptions,
        ttft_s=ttft_s(record),
        tpot_s=tpot_s(record),
        itl_s=itl_s(record),
        e2e_s=e2e_s(record),
        queue_s=queue_s(record),
        prefill_s=prefill_s(record),
        decode_s=decode_s(record),
    )


def merged_metrics(choices: Sequence[RequestMetrics]) -> RequestMetrics:
    """Metrics of a request with several choices.

    Times to the first token of any choice and to the last of all; gaps of all choices; TPOT is the
    mean over the choices that have one.
    """
    if len(choices) == 1:
        return choices[0]
    tpots_s = [c.tpot_s for c in choices if c.tpot_s is not None]
    return RequestMetrics(
        num_prompt_tokens=choices[0].num_prompt_tokens,
        num_cached_tokens=choices[0].num_cached_tokens,
        num_output_tokens=sum(c.num_output_tokens for c in choices),
        num_preemptions=sum(c.num_preemptions for c in choices),
        ttft_s=min((c.ttft_s for c in choices if c.ttft_s is not None), default=None),
        tpot_s=sum(tpots_s) / len(tpots_s) if tpots_s else None,
        itl_s=[gap for c in choices for gap in c.itl_s],
        e2e_s=max((c.e2e_s for c in choices if c.e2e_s is not None), default=None),
        queue_s=min((c.queue_s for c in choices if c.queue_s is not None), default=None),
        prefill_s=min((c.prefill_s for c in choices if c.prefill_s is not None), default=None),
        decode_s=max((c.decode_s for c in choices if c.decode_s is not None), default=None),
    )
