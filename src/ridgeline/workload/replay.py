"""A recorded trace made into prompts: random tokens of its lengths, equal where its block ids are."""

from __future__ import annotations

from random import Random

from ridgeline.workload.load_request import LoadRequest, Workload
from ridgeline.workload.prompts import PromptMaker
from ridgeline.workload.token_traces import MOONCAKE_BLOCK_TOKENS, TokenTrace, TracedRequest


def replay_workload(trace: TokenTrace, count: int, maker: PromptMaker, *, seed: int) -> Workload:
    """The first `count` requests of `trace`. Equal block ids give equal blocks of 512 tokens."""
    requests = [
        LoadRequest(
            prompt=_prompt(request, maker, seed),
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            arrived_at_s=request.arrived_at_s,
        )
        for request in trace.requests[:count]
    ]
    return Workload(requests, trace.notes)


def _prompt(request: TracedRequest, maker: PromptMaker, seed: int) -> str | list[int]:
    if not request.block_ids:
        return maker.prompt(request.num_prompt_tokens)
    token_ids: list[int] = []
    for block_id in request.block_ids:
        token_ids += maker.draw(MOONCAKE_BLOCK_TOKENS, Random(f"{seed}:{block_id}"))
    missing = request.num_prompt_tokens - len(token_ids)
    return (token_ids + maker.draw(max(missing, 0)))[: request.num_prompt_tokens]
