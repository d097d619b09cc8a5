"""What happened, as typed records; every metric, trace and explanation is a fold of these.

A request's block table can be followed from its events alone: `BlocksHit` or `BlocksShared` sets its
first blocks, `BlocksAllocated` appends, `BlocksCopied` and `BlocksMerged` replace one block by another,
`RequestPreempted` and `RequestFinished` empty it. With `StepFinished.composition` that tells which
blocks each step read and wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from ridgeline.outputs import FinishReason


class _Event(msgspec.Struct, frozen=True, gc=False):
    """The garbage collector need not look at events: they refer to nothing that could refer back.

    A log keeps 100,000 of them, and each full collection would stop every token until it has seen all.
    """


class RequestArrived(_Event, frozen=True):
    """A request entered the waiting queue; it reached us at `arrived_at_s`.

    `max_tokens` were asked for at most. Of `num_choices` completions of one prompt each is a request, and
    all but the first name that one in `fork_of`.
    """

    at_s: float
    request_id: str
    arrived_at_s: float
    num_prompt_tokens: int
    max_tokens: int | None = None
    num_choices: int = 1
    fork_of: str | None = None


class RequestScheduled(_Event, frozen=True):
    """A request was admitted: it runs from here on, until it ends or is preempted.

    `num_cached_tokens` of its tokens needed no computing: found in the prefix cache, or taken over from
    the first sample of the same prompt. `resumed` tells that it ran before and was preempted.
    """

    at_s: float
    request_id: str
    num_cached_tokens: int = 0
    resumed: bool = False


class Lack(StrEnum):
    """What an admission waits for."""

    SEQS = "max_num_seqs"
    """A running request to end: as many run as may."""
    BLOCKS = "kv_blocks"
    TOKENS = "max_num_batched_tokens"
    """A step with tokens to spare."""
    PREFILLS = "prefills"
    """Prompts under computation: a place among partial ones, or a prefix that it shares."""


class AdmissionHeld(_Event, frozen=True):
    """The first in the waiting queue lacks something, and those behind it wait for it too.

    Written when another is first, or lacks something else, than in the step before.
    """

    at_s: float
    request_id: str
    lack: Lack


class RequestPreempted(_Event, frozen=True):
    """A request lost its blocks to `displaced_by` (itself, when it was the newest) and waits.

    `num_computed_tokens` are to be computed again, less what the prefix cache still holds then.
    """

    at_s: float
    request_id: str
    displaced_by: str
    num_computed_tokens: int


class RequestFinished(_Event, frozen=True):
    """A request ended and holds nothing any more."""

    at_s: float
    request_id: str
    finish_reason: FinishReason
    num_output_tokens: int


class _BlocksOfRequest(_Event, frozen=True):
    at_s: float
    request_id: str
    block_ids: tuple[int, ...]


class BlocksAllocated(_BlocksOfRequest, frozen=True):
    """Blocks were given to a request."""


class BlocksFilled(_BlocksOfRequest, frozen=True):
    """Every slot of these blocks now holds a computed token."""


class BlocksCached(_BlocksOfRequest, frozen=True):
    """Full blocks entered the hash index; other requests can find them from now on."""


class BlocksHit(_Event, frozen=True):
    """A request starts with blocks that the prefix cache holds, `num_tokens` tokens in all.

    `block_ids` in order of position; `held_block_ids` are those that other requests hold as well, the
    rest were idle.
    """

    at_s: float
    request_id: str
    block_ids: tuple[int, ...]
    num_tokens: int
    held_block_ids: tuple[int, ...] = ()


class MissReason(StrEnum):
    """Why a prefix lookup found no further block."""

    DIFFERS = "differs"
    """A cached block follows the same tokens, but other tokens stand in it."""
    EVICTED = "evicted"
    """The block was cached, and had to make room."""
    SALT = "salt"
    """The same first block is cached under another `cache_salt`."""
    PARTIAL_BLOCK = "partial_block"
    """The rest of the prompt fills no block, or is its last token, which is always computed."""
    COLD = "cold"
    """Nobody computed these tokens as far as is known."""


class PrefixMissed(_Event, frozen=True):
    """Where and why a prefix lookup ended.

    `num_hit_tokens` were found. `differs_at` is the position of the first token that is another one
    (DIFFERS only), `evicted_at_s` the instant of the eviction (EVICTED only).
    """

    at_s: float
    request_id: str
    num_hit_tokens: int
    reason: MissReason
    differs_at: int | None = None
    evicted_at_s: float | None = None


class BlocksShared(_Event, frozen=True):
    """A sample of the same prompt starts with the blocks of `source_request_id`, the last one partial.

    `block_ids` in order of position; they hold `num_tokens` computed tokens.
    """

    at_s: float
    request_id: str
    block_ids: tuple[int, ...]
    source_request_id: str
    num_tokens: int


class BlocksCopied(_Event, frozen=True):
    """A request got its own copy of a shared, partly filled block: (from, to), in the table too."""

    at_s: float
    request_id: str
    copies: tuple[tuple[int, int], ...]


class BlocksMerged(_Event, frozen=True):
    """Blocks that a request just filled were cached already: (from, to), in its table too."""

    at_s: float
    request_id: str
    merges: tuple[tuple[int, int], ...]


class BlocksEvicted(_BlocksOfRequest, frozen=True):
    """Idle blocks left the hash index, least recently used first, to be given to `request_id`."""


class BlocksFreed(_BlocksOfRequest, frozen=True):
    """Nobody holds these blocks any more; those that are cached stay findable (idle) until evicted."""


class PrefixCacheReset(_Event, frozen=True):
    """The hash index was emptied on request."""

    at_s: float
    num_blocks: int


class TokensEmitted(_Event, frozen=True):
    """Tokens that one step sampled, as (request_id, number of tokens) pairs."""

    at_s: float
    counts: Sequence[tuple[str, int]]


class LogitsCorrupted(_Event, frozen=True):
    """The model gave NaN or infinite logits for a request, which ends by it."""

    at_s: float
    request_id: str


class DeltasCoalesced(_Event, frozen=True):
    """A client that reads slowly gets the deltas of several steps as one, `num_tokens` in all so far."""

    at_s: float
    request_id: str
    num_tokens: int


class StepFinished(_Event, frozen=True):
    """One step: its composition and where its time went.

    `composition` holds (request_id, num_computed_tokens before, num_scheduled_tokens). `predicted_op_s` is
    what each op, and `step_overhead`, was expected to take before the step ran, `bound_op_s` the least that
    the machine's ceilings allow; None where the machine is not calibrated.
    """

    at_s: float
    step_id: int
    composition: Sequence[tuple[str, int, int]]
    execute_s: float
    op_seconds: dict[str, float]
    predicted_op_s: dict[str, float] | None = None
    bound_op_s: dict[str, float] | None = None


Event = (
    RequestArrived
    | RequestScheduled
    | AdmissionHeld
    | RequestPreempted
    | RequestFinished
    | BlocksAllocated
    | BlocksFilled
    | BlocksCached
    | BlocksHit
    | PrefixMissed
    | BlocksShared
    | BlocksCopied
    | BlocksMerged
    | BlocksEvicted
    | BlocksFreed
    | PrefixCacheReset
    | TokensEmitted
    | LogitsCorrupted
    | DeltasCoalesced
    | StepFinished
)


class EventRecorder:
    """Collects the core's events in the order they happen, until somebody takes them."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def record(self, event: Event) -> None:
        """Append one event."""
        self._events.append(event)

    def take(self) -> list[Event]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events
