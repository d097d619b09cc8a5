"""Clock: the one place where time comes from."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of instants in seconds that never runs backwards."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds since an arbitrary start, at the clock's full resolution."""
        return time.perf_counter()


def wall_time_s() -> float:
    """Seconds since the epoch, for timestamps that people read; it may jump."""
    return time.time()
