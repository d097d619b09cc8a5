"""Request: one generation job, from arrival to its last token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from ridgeline.outputs import FinishReason, StopReason
from ridgeline.sampling_params import SamplingParams


class RequestStatus(Enum):
    """Where a request is: in one of the two queues, or over."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(eq=False, slots=True, kw_only=True)
class Request:
    """One generation job. The Scheduler is the only writer of its state.

    `max_num_tokens` bounds prompt plus output. `seed`, `choice_index` and the output position key
    every random draw. Lower `priority` is more urgent. Only requests with one `cache_salt` share cached
    blocks. `fork_of` names the first sample of the same prompt, whose prompt blocks this one takes over.
    `grammar` is what the output must follow, compiled; opaque here. `queue_key` orders the waiting queue.
    `num_prompt_logprobs` prompt positions have given their logprobs. The `*_at_s` are instants on one
    monotonic clock, in seconds: `queued_at_s` entered the waiting queue, `scheduled_at_s` first given tokens.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling_params: SamplingParams
    arrived_at_s: float
    seed: int
    max_num_tokens: int
    choice_index: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    priority: int = 0
    cache_salt: str | None = None
    fork_of: str | None = None
    grammar: object | None = None
    queue_key: tuple[float, int] = (0.0, 0)
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    output_token_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_prompt_logprobs: int = 0
    queued_at_s: float | None = None
    scheduled_at_s: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: StopReason = None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far, the stop token included."""
        return len(self.output_token_ids)

    @property
    def num_tokens(self) -> int:
        """All known tokens: prompt and output."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def needs_all_logits(self) -> bool:
        """Whether prompt tokens must be computed for their logprobs, cached or not."""
        wants_them = self.sampling_params.prompt_logprobs is not None
        return wants_them and self.num_prompt_logprobs < self.num_prompt_tokens - 1

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended, for whatever reason."""
        return self.status is RequestStatus.FINISHED

    def token_ids(self, start: int, end: int) -> list[int]:
        """Known token ids of positions [start, end), across prompt and output."""
        num_prompt_tokens = self.num_prompt_tokens
        ids = list(self.prompt_token_ids[start : min(end, num_prompt_tokens)])
        if end > num_prompt_tokens:
            ids += self.output_token_ids[max(start - num_prompt_tokens, 0) : end - num_prompt_tokens]
        return ids
