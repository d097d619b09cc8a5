"""What happened, as typed records; every metric, trace and explanation is a fold of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.outputs import FinishReason


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A request entered the waiting queue; it reached us at `arrived_at_s`."""

    at_s: float
    request_id: str
    arrived_at_s: float
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class RequestScheduled:
    """A request was given its first tokens; it runs from here on."""

    at_s: float
    request_id: str


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """A request ended and holds nothing any more."""

    at_s: float
    request_id: str
    finish_reason: FinishReason
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class BlocksAllocated:
    """Blocks were given to a request."""

    at_s: float
    request_id: str
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlocksFilled:
    """Every slot of these blocks now holds a computed token."""

    at_s: float
    request_id: str
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlocksFreed:
    """A request gave up these blocks and nobody else holds them."""

    at_s: float
    request_id: str
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokensEmitted:
    """Tokens that one step sampled, as (request_id, number of tokens) pairs."""

    at_s: float
    counts: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class StepFinished:
    """One step: its composition and where its time went.

    `composition` holds (request_id, num_computed_tokens before, num_scheduled_tokens).
    """

    at_s: float
    step_id: int
    composition: Sequence[tuple[str, int, int]]
    execute_s: float
    op_seconds: dict[str, float]


Event = (
    RequestArrived
    | RequestScheduled
    | RequestFinished
    | BlocksAllocated
    | BlocksFilled
    | BlocksFreed
    | TokensEmitted
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
