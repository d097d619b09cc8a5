"""What a request gives back: text, ids, logprobs, why it ended and how long it took."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a request ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"
    """Its deadline passed, or the server's at shutdown."""
    ERROR = "error"
    """Its form grew too complex to be followed, or its own computation failed."""


StopReason = int | str | None
"""The stop token id or stop string that ended a request, what failed for `error`; None otherwise."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural log-probability of one token under the model's own distribution.

    `rank` counts from 1 over the vocabulary (equal values by token id); `decoded_token` is the
    token's own text, incomplete UTF-8 shown as U+FFFD.
    """

    logprob: float
    rank: int
    decoded_token: str


LogprobsAtPosition = dict[int, Logprob]
"""Token id → `Logprob`; always holds the token that stands at the position."""


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Durations of one request in seconds, None where undefined (a TPOT of one token).

    Source of the definitions: docs/metrics.md.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: list[float] = field(default_factory=list)
    e2e_s: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One of the `n` completions of a prompt."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[LogprobsAtPosition] | None = None
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: StopReason = None

    def extend(self, delta: CompletionOutput) -> None:
        """Append what a later delta of the same choice brought."""
        assert delta.index == self.index
        self.text += delta.text
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += delta.logprobs
        self.cumulative_logprob = delta.cumulative_logprob
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason


@dataclass(slots=True)
class RequestOutput:
    """All that is known of a request; in a stream, what is new since the last one."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[LogprobsAtPosition | None] | None = None
    metrics: RequestMetrics | None = None

    def extend(self, delta: RequestOutput) -> None:
        """Append what a later delta of the same request brought; choices are matched by index."""
        assert delta.request_id == self.request_id
        for completion in delta.outputs:
            known = next((mine for mine in self.outputs if mine.index == completion.index), None)
            if known is None:
                self.outputs.append(completion)
            else:
                known.extend(completion)
        self.finished = delta.finished
        self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs
        self.metrics = delta.metrics or self.metrics
