"""TTFT, TPOT, ITL and their kin, defined once for everything that reports them.

Source of the definitions: docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ridgeline.core.request import Request
from ridgeline.outputs import RequestMetrics


def request_metrics(request: Request, token_times_s: Sequence[float]) -> RequestMetrics:
    """Durations of one request from its instants; `token_times_s` are the emissions of its tokens.

    TTFT = first token − arrival; ITL = each gap between tokens; TPOT = (last − first) / (N − 1), None for
    one token; e2e = last token − arrival; queue = first scheduled − queued; prefill = first token −
    scheduled; decode = last − first token. Undefined quantities are None.
    """
    itl_s = [later - earlier for earlier, later in pairwise(token_times_s)]
    assert all(gap >= 0 for gap in itl_s), "token times run backwards"
    first = token_times_s[0] if token_times_s else None
    last = token_times_s[-1] if token_times_s else None
    return RequestMetrics(
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_output_tokens=len(token_times_s),
        num_preemptions=request.num_preemptions,
        ttft_s=_between(request.arrived_at_s, first),
        tpot_s=sum(itl_s) / len(itl_s) if itl_s else None,
        itl_s=itl_s,
        e2e_s=_between(request.arrived_at_s, last),
        queue_s=_between(request.queued_at_s, request.scheduled_at_s),
        prefill_s=_between(request.scheduled_at_s, first),
        decode_s=_between(first, last),
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


def _between(start_s: float | None, end_s: float | None) -> float | None:
    if start_s is None or end_s is None:
        return None
    assert end_s >= start_s, "an instant lies before the one it follows"
    return end_s - start_s
