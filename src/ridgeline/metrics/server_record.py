"""ServerRecord: what the engine's event log says of one request; the fold that makes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ridgeline.core import events as ev
from ridgeline.metrics.client_record import Outcome
from ridgeline.metrics.durations import Chunk
from ridgeline.outputs import FinishReason

_Changed = ev.RequestScheduled | ev.RequestPreempted | ev.RequestFinished
_OUTCOMES: Mapping[str, Outcome] = MappingProxyType(
    {"stop": Outcome.OK, "length": Outcome.OK, "abort": Outcome.ABORTED, "timeout": Outcome.TIMEOUT}
)


@dataclass(slots=True, kw_only=True)
class ServerRecord:
    """One request, instants in seconds on the engine's clock; None: it has not come to that.

    `queued_at_s`: entered the waiting queue; `scheduled_at_s`: admitted for the first time. `chunks` are its
    tokens with the end of the step that sampled them. `preemptions` are (blocks lost, admitted again), the
    last one open as long as it waits. `num_cached_tokens` is of the first admission. A request with several
    choices has one record for each; all but the first name that one in `fork_of`.
    """

    request_id: str
    arrived_at_s: float
    queued_at_s: float | None
    num_prompt_tokens: int
    max_tokens: int | None = None
    num_choices: int = 1
    fork_of: str | None = None
    scheduled_at_s: float | None = None
    num_cached_tokens: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    preemptions: list[tuple[float, float]] = field(default_factory=list)
    preempted_at_s: float | None = None
    finished_at_s: float | None = None
    finish_reason: FinishReason | None = None

    @property
    def clock_starts_at_s(self) -> float:
        """The handler's first line: parsing and tokenising are part of what the user waits."""
        return self.arrived_at_s

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def num_preemptions(self) -> int:
        """How often it lost its blocks."""
        return len(self.preemptions) + (self.preempted_at_s is not None)

    @property
    def outcome(self) -> Outcome | None:
        """As its client should see it; None: it is not over."""
        reason = self.finish_reason
        return None if reason is None else outcome_of(reason)

    @property
    def slos_s(self) -> Mapping[str, float]:
        """A request brings no limits of its own to the engine."""
        return MappingProxyType({})


def outcome_of(reason: FinishReason) -> Outcome:
    """The outcome that a finish reason is for a client; reasons that are not good ends are failures."""
    return _OUTCOMES.get(reason, Outcome.HTTP_ERROR)


class ServerRecords:
    """Folds events, in the order they happened, into the records of the requests that they are about.

    `open_records` are those still under way. A request that arrived before the first event is not known.
    """

    def __init__(self) -> None:
        self.open_records: dict[str, ServerRecord] = {}

    def record(self, events: Iterable[ev.Event]) -> list[ServerRecord]:
        """Take the events of one step; returns the records that ended with it, whole.

        The end of a request stands before its last token in the log, so a record is given away only when the
        step's events have all been seen.
        """
        ended: list[ServerRecord] = []
        for event in events:
            self.apply(event)
            if isinstance(event, ev.RequestFinished) and event.request_id in self.open_records:
                ended.append(self.open_records[event.request_id])
        for record in ended:
            del self.open_records[record.request_id]
        return ended

    def apply(self, event: ev.Event) -> None:
        """Write one event into the record that it is about; an ended one stays open for its last token."""
        if isinstance(event, ev.TokensEmitted):
            self._emit(event)
        elif isinstance(event, ev.RequestArrived):
            self.open_records[event.request_id] = _arrived(event)
        elif isinstance(event, _Changed):
            record = self.open_records.get(event.request_id)
            if record is not None:
                _change(record, event)

    def _emit(self, event: ev.TokensEmitted) -> None:
        for request_id, count in event.counts:
            record = self.open_records.get(request_id)
            if record is not None:
                record.chunks.append(Chunk(event.at_s, count))


def _arrived(event: ev.RequestArrived) -> ServerRecord:
    return ServerRecord(
        request_id=event.request_id,
        arrived_at_s=event.arrived_at_s,
        queued_at_s=event.at_s,
        num_prompt_tokens=event.num_prompt_tokens,
        max_tokens=event.max_tokens,
        num_choices=event.num_choices,
        fork_of=event.fork_of,
    )


def _change(
    record: ServerRecord, event: ev.RequestScheduled | ev.RequestPreempted | ev.RequestFinished
) -> None:
    if isinstance(event, ev.RequestScheduled):
        if record.scheduled_at_s is None:
            record.scheduled_at_s = event.at_s
            record.num_cached_tokens = min(event.num_cached_tokens, record.num_prompt_tokens)
        if record.preempted_at_s is not None:
            record.preemptions.append((record.preempted_at_s, event.at_s))
            record.preempted_at_s = None
    elif isinstance(event, ev.RequestPreempted):
        if record.preempted_at_s is None:
            record.preempted_at_s = event.at_s
    else:
        record.finished_at_s, record.finish_reason = event.at_s, event.finish_reason


def server_records(events: Iterable[ev.Event]) -> list[ServerRecord]:
    """The records of all requests that arrive in the log, by arrival in the queue; some may not be over."""
    fold = ServerRecords()
    records: list[ServerRecord] = []
    for event in events:
        fold.apply(event)
        if isinstance(event, ev.RequestArrived):
            records.append(fold.open_records[event.request_id])
    return records
