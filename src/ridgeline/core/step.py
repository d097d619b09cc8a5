"""Both halves of one step: what the scheduler asks for and what the executor answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ridgeline.core.request import Request


class ScheduledRequest(NamedTuple):
    """A request's share of one step: tokens [num_computed_tokens, + num_scheduled_tokens).

    `request` is for reading only; `block_ids` is its block table, long enough for these tokens.
    """

    request: Request
    num_computed_tokens: int
    num_scheduled_tokens: int
    block_ids: Sequence[int]

    @property
    def end(self) -> int:
        """Context length after this step, in tokens."""
        return self.num_computed_tokens + self.num_scheduled_tokens

    @property
    def samples(self) -> bool:
        """Whether all known tokens are computed after this step, so a new one is drawn."""
        return self.end == self.request.num_tokens


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The work of one step, in the order the rows are laid out."""

    step_id: int
    scheduled: Sequence[ScheduledRequest]
    block_copies: Sequence[tuple[int, int]] = ()

    @property
    def num_scheduled_tokens(self) -> int:
        """Tokens computed in this step, over all requests."""
        return sum(s.num_scheduled_tokens for s in self.scheduled)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: the token that stands there, then the top n.

    `token_ids`, `logprobs` and `ranks` are parallel; entry 0 is the token that stands there, the
    rest are the n most probable in order (the first may stand among them again).
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    ranks: Sequence[int]


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """Results of one step, parallel to `SchedulerOutput.scheduled`.

    `sampled_token_ids[i]` is None where request i still has tokens to compute.
    `prompt_logprobs[i]` holds one entry per prompt position that this step made known.
    `forced_token_ids[i]` follow the sampled token of request i without a choice, by its grammar (no entry:
    none). `failures[i]` says why the grammar of request i can't be followed any more; it ends here.
    `op_seconds` maps an op's name to the seconds it took in this step, `host_seconds` the executor's work
    around them: `arrays` made of the schedule, `calls` of the ops beyond the ops themselves.
    """

    sampled_token_ids: Sequence[int | None]
    logprobs: Sequence[TokenLogprobs | None]
    prompt_logprobs: Sequence[Sequence[TokenLogprobs]]
    op_seconds: dict[str, float] = field(default_factory=dict)
    forced_token_ids: Mapping[int, Sequence[int]] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)
    host_seconds: Mapping[str, float] = field(default_factory=dict)
