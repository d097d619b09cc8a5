"""EventLog: the last events, in a ring of fixed size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ridgeline.core.events import Event


class EventLog:
    """Keeps the newest `max_num_events` events and counts those that had to go."""

    def __init__(self, max_num_events: int) -> None:
        assert max_num_events > 0
        self._events: deque[Event] = deque(maxlen=max_num_events)
        self._num_seen = 0

    @property
    def num_dropped_events(self) -> int:
        """Events that were overwritten by newer ones."""
        return self._num_seen - len(self._events)

    def record(self, events: Iterable[Event]) -> None:
        """Append events; the oldest give way."""
        for event in events:
            self._events.append(event)
            self._num_seen += 1

    def events(self) -> Sequence[Event]:
        """The kept events, oldest first."""
        return list(self._events)
