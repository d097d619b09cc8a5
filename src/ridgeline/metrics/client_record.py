"""ClientRecord: what a client saw of one request, on its own monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ridgeline.metrics.durations import Chunk


class Outcome(StrEnum):
    """How a request ended, as its client sees it; everything but `OK` is a failure of that kind."""

    OK = "ok"
    REJECTED = "rejected"
    """HTTP 429 or 503."""
    HTTP_ERROR = "http_error"
    CONNECTION = "connection"
    TIMEOUT = "timeout"
    MALFORMED_STREAM = "malformed_stream"
    TRUNCATED = "truncated"
    """The stream ended without a finish reason."""
    ABORTED = "aborted"
    """We stopped it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRecord:
    """One request of a load run. Instants in seconds on one monotonic clock; None: it never came to that.

    `scheduled_at_s` was fixed before the run (open loop) or is the send itself (closed loop); `sent_at_s`:
    handed to the HTTP client. `chunks` carry tokens; `empty_at_s` are choices that carry none (a role alone,
    a bare finish reason), in order; `last_event_at_s` is the last event of any kind, `[DONE]` included,
    `closed_at_s` the end of the stream. `has_chunk_tokens` tells that the server said how many tokens each
    chunk carries; without it each counts as one. `has_whole_stream`: an event stream came to its end without
    a break and could be read, whatever it said. Token counts are the server's usage where it gave one.
    `slos_s` are limits of this request alone.
    """

    request_id: str
    scheduled_at_s: float
    sent_at_s: float | None
    chunks: Sequence[Chunk]
    outcome: Outcome
    empty_at_s: Sequence[float] = ()
    last_event_at_s: float | None = None
    closed_at_s: float | None = None
    has_chunk_tokens: bool = False
    has_whole_stream: bool = False
    num_requested_prompt_tokens: int | None = None
    num_requested_output_tokens: int | None = None
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None
    finish_reason: str | None = None
    text: str = ""
    error: str | None = None
    slos_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def clock_starts_at_s(self) -> float:
        """Waiting in the client is part of what its user waits."""
        return self.scheduled_at_s
