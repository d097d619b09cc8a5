"""EventLog: the last events, in a ring whose memory has a bound."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ridgeline.core.events import Event, StepFinished, TokensEmitted

_REQUESTS_PER_EVENT = 4
"""So many requests of a batch take about the memory of one event."""


class EventLog:
    """Keeps the newest events, `max_num_events` of them at most, and counts those that had to go.

    A batch's events count once for every 4 requests they tell of, so that large batches, whose events are
    large, do not make the log grow for as long as it takes to fill it with small ones.
    """

    def __init__(self, max_num_events: int) -> None:
        assert max_num_events > 0
        self._events: deque[Event] = deque()
        self._max_size = max_num_events
        self._size = 0
        self._num_seen = 0

    @property
    def num_dropped_events(self) -> int:
        """Events that gave way to newer ones."""
        return self._num_seen - len(self._events)

    def record(self, events: Iterable[Event]) -> None:
        """Append events; the oldest give way. The newest stays, whatever its size."""
        for event in events:
            self._events.append(event)
            self._num_seen += 1
            self._size += _size(event)
        while self._size > self._max_size and len(self._events) > 1:
            self._size -= _size(self._events.popleft())

    def events(self) -> Sequence[Event]:
        """The kept events, oldest first."""
        return list(self._events)


def _size(event: Event) -> int:
    if isinstance(event, StepFinished):
        return 1 + len(event.composition) // _REQUESTS_PER_EVENT
    if isinstance(event, TokensEmitted):
        return 1 + len(event.counts) // _REQUESTS_PER_EVENT
    return 1
