"""The run: sends requests at instants fixed beforehand, whatever the server does meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ridgeline.loadgen.client import PreparedRequest
from ridgeline.metrics.client_record import ClientRecord


class Sender(Protocol):
    """What sends a request: `LoadClient`, or a script in tests."""

    async def send(self, request: PreparedRequest, scheduled_at_s: float) -> ClientRecord:
        """The record of one request; never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When to send: `arrivals_s` from the run's start, one for each request, in order.

    `max_concurrency` caps what is in flight. Without instants that matter (`is_closed`: an infinite rate
    under a cap) a request is scheduled when its place becomes free; else the wait for a place is part of its
    latency.
    """

    arrivals_s: Sequence[float]
    max_concurrency: int | None = None

    @property
    def is_closed(self) -> bool:
        """A closed loop: as many as the cap allows, all the time."""
        return self.max_concurrency is not None and not any(self.arrivals_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """What a run saw; instants in seconds on the loop's clock.

    `records` are those of all requests sent, in order of schedule; `dispatch_lateness_s` is how long after
    each scheduled instant the generator turned to it, before any wait for a place under the cap.
    """

    records: Sequence[ClientRecord]
    started_at_s: float
    finished_at_s: float
    dispatch_lateness_s: Sequence[float]
    num_not_sent: int = 0
    was_interrupted: bool = False
    probes: Sequence[ClientRecord] = field(default_factory=tuple)


class PreciseTimer:
    """Waits for an instant to a fraction of a millisecond: the event loop's own timers round up to one."""

    def __init__(self) -> None:
        self._stop = threading.Event()

    async def sleep_until(self, at_s: float) -> None:
        """Return at `at_s` on the loop's clock, never before; at once when that is over or after `close`."""
        loop = asyncio.get_running_loop()
        while (delay_s := at_s - loop.time()) > 0 and not self._stop.is_set():
            await loop.run_in_executor(None, self._stop.wait, delay_s)

    def close(self) -> None:
        """Wake the thread that waits."""
        self._stop.set()


async def run_load(
    sender: Sender,
    requests: Sequence[PreparedRequest],
    schedule: Schedule,
    *,
    stop: asyncio.Event,
    on_record: Callable[[ClientRecord], None] = lambda _: None,
    sleep_until: Callable[[float], Awaitable[None]] | None = None,
) -> LoadRun:
    """Send `requests` by `schedule`; `stop` ends the run with what was done by then."""
    timer = PreciseTimer()
    dispatcher = _Dispatcher(sender, schedule, on_record)
    dispatch = asyncio.create_task(dispatcher.dispatch(requests, sleep_until or timer.sleep_until))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({dispatch, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            await dispatch  # raises what went wrong in it
            await dispatcher.drain(stopped)
    finally:
        timer.close()
        stopped.cancel()
        dispatch.cancel()
        await asyncio.gather(dispatch, stopped, return_exceptions=True)
        await dispatcher.abort()
    return dispatcher.result(len(requests), was_interrupted=stop.is_set())


class _Dispatcher:
    """The requests in flight."""

    def __init__(self, sender: Sender, schedule: Schedule, on_record: Callable[[ClientRecord], None]) -> None:
        self._sender = sender
        self._schedule = schedule
        self._on_record = on_record
        self._loop = asyncio.get_running_loop()
        cap = schedule.max_concurrency
        self._places = asyncio.Semaphore(cap) if cap is not None else None
        self._tasks: list[asyncio.Task[ClientRecord | None]] = []
        self._lateness_s: list[float] = []
        self._started_at_s = self._loop.time()

    async def dispatch(
        self, requests: Sequence[PreparedRequest], sleep_until: Callable[[float], Awaitable[None]]
    ) -> None:
        """Start each request at its instant."""
        for request, arrival_s in zip(requests, self._schedule.arrivals_s, strict=True):
            at_s = self._started_at_s + arrival_s
            if self._schedule.is_closed:
                assert self._places is not None
                await self._places.acquire()
                at_s = self._loop.time()
            else:
                await sleep_until(at_s)
            self._lateness_s.append(max(self._loop.time() - at_s, 0.0))
            self._tasks.append(self._loop.create_task(self._one(request, at_s)))

    async def drain(self, stopped: asyncio.Task[bool]) -> None:
        """Wait for all answers, or for the stop."""
        answers: asyncio.Future[Any] = asyncio.gather(*self._tasks, return_exceptions=True)
        waits: set[asyncio.Future[Any]] = {answers, stopped}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)

    async def abort(self) -> None:
        """Cancel what is in flight; its records say so."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def result(self, num_requests: int, *, was_interrupted: bool) -> LoadRun:
        """The run, when nothing is in flight any more."""
        records = [task.result() for task in self._tasks if not task.cancelled()]
        sent = [record for record in records if record is not None]
        return LoadRun(
            records=sent,
            started_at_s=self._started_at_s,
            finished_at_s=max((_end_s(record) for record in sent), default=self._started_at_s),
            dispatch_lateness_s=self._lateness_s,
            num_not_sent=num_requests - len(sent),
            was_interrupted=was_interrupted,
        )

    async def _one(self, request: PreparedRequest, at_s: float) -> ClientRecord | None:
        """None: stopped while it waited for its place."""
        if self._places is not None and not self._schedule.is_closed:
            try:
                await self._places.acquire()
            except asyncio.CancelledError:
                return None
        try:
            record = await self._sender.send(request, at_s)
        finally:
            if self._places is not None:
                self._places.release()
        self._on_record(record)
        return record


def _end_s(record: ClientRecord) -> float:
    return record.closed_at_s if record.closed_at_s is not None else record.scheduled_at_s
