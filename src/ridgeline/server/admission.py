"""Admission: a bounded waiting queue that tells whom it refuses when to come back.

It counts sequences (a request with `n` = 4 is four) from the moment a request is let in, before it is
tokenised, until it is over. Of these `max_num_seqs` can run at once, the rest wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ridgeline.engine.clock import Clock
from ridgeline.errors import OverloadedError, RequestError

RATE_WINDOW_S = 60.0
"""Finished sequences are remembered for so long when the drain is measured."""
MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 1.0, 300.0


class TooManySequencesError(RequestError):
    """One request of more sequences than the whole queue has places."""


class DrainRate:
    """Sequences that end per second while others wait for their places.

    Measured only while the queue is not empty: a server with free places ends what it is sent, not what
    it could. Instants are arguments, in seconds on one monotonic clock, and never go back.
    """

    def __init__(self) -> None:
        self._finishes: deque[tuple[float, int]] = deque()
        self._measuring_since_s: float | None = None

    def observe(self, num_waiting: int, num_finished: int, now: float) -> None:
        """`num_finished` sequences ended and `num_waiting` wait now."""
        if num_finished and self._measuring_since_s is not None:
            self._finishes.append((now, num_finished))
        if num_waiting == 0:
            self._finishes.clear()
            self._measuring_since_s = None
        elif self._measuring_since_s is None:
            self._measuring_since_s = now

    def wait_s(self, num_sequences: int, now: float) -> float | None:
        """Seconds until so many have ended at the measured rate; None while none has ended."""
        while self._finishes and self._finishes[0][0] < now - RATE_WINDOW_S:
            self._finishes.popleft()
        if self._measuring_since_s is None or not self._finishes:
            return None
        span_s = max(now - max(self._measuring_since_s, now - RATE_WINDOW_S), 1e-3)
        return num_sequences * span_s / sum(num for _, num in self._finishes)

    def measured_s(self, now: float) -> float:
        """Seconds since the queue last became non-empty."""
        return now - self._measuring_since_s if self._measuring_since_s is not None else 0.0


class Admission:
    """Who may come in: at most `max_num_seqs` sequences running and `max_num_waiting` waiting."""

    def __init__(self, *, max_num_seqs: int, max_num_waiting: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_num_waiting = max_num_waiting
        self._num_sequences = 0
        self._drain = DrainRate()

    @property
    def num_sequences(self) -> int:
        """Sequences that were let in and are not over."""
        return self._num_sequences

    @property
    def num_waiting(self) -> int:
        """Those of them that exceed what can run at once."""
        return max(0, self._num_sequences - self._max_num_seqs)

    def wait_s(self, now: float) -> float | None:
        """Seconds that one more sequence would wait: none while a place is free, else until all before it
        have begun, at the measured rate of ending; None while that is not known."""
        if self._num_sequences < self._max_num_seqs:
            return 0.0
        return self._drain.wait_s(self.num_waiting + 1, now)

    def enter(self, num_sequences: int, now: float) -> None:
        """Let a request of so many sequences in; `leave` must follow when it is over.

        Raises:
            TooManySequencesError: it is larger than the whole queue, and never gets in.
            OverloadedError: it does not fit now; says when to try again.
        """
        room = self._max_num_seqs + self._max_num_waiting
        if num_sequences > room:
            remedy = f"this server takes at most {room} sequences at once"
            raise TooManySequencesError("n", num_sequences, remedy)
        self.check_room(num_sequences, now)
        self._num_sequences += num_sequences
        self._drain.observe(self.num_waiting, 0, now)

    def check_room(self, num_sequences: int, now: float) -> None:
        """Whether so many would fit now.

        Raises:
            OverloadedError: they would not; says when to try again.
        """
        if self._num_sequences + num_sequences > self._max_num_seqs + self._max_num_waiting:
            raise OverloadedError(
                f"the waiting queue is full ({self.num_waiting} of {self._max_num_waiting} sequences)",
                self.retry_after_s(now),
            )

    def leave(self, num_sequences: int, now: float) -> None:
        """A request that was let in is over, in whatever way."""
        assert self._num_sequences >= num_sequences
        self._num_sequences -= num_sequences
        self._drain.observe(self.num_waiting, num_sequences, now)

    def retry_after_s(self, now: float) -> float:
        """Seconds until all who wait now have begun, at the measured rate of ending; in 1…300.

        While nothing has ended since the queue filled, as long again as it has been so.
        """
        wait_s = self._drain.wait_s(max(1, self.num_waiting), now)
        estimate_s = wait_s if wait_s is not None else self._drain.measured_s(now)
        return min(MAX_RETRY_AFTER_S, max(MIN_RETRY_AFTER_S, estimate_s))


@contextmanager
def admitted(admission: Admission, num_sequences: int, clock: Clock) -> Iterator[None]:
    """Hold the places of one request.

    Raises:
        RequestError, OverloadedError: as `Admission.enter`.
    """
    admission.enter(num_sequences, clock.now())
    try:
        yield
    finally:
        admission.leave(num_sequences, clock.now())
