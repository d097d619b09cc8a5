"""The run on a virtual clock: when requests are sent, what waits, what a stop leaves."""

from __future__ import annotations

import asyncio
from random import Random

import numpy as np
import pytest
from tests.loadgen.virtual_time import run_virtually, sleep_until

from ridgeline.loadgen.client import PreparedRequest
from ridgeline.loadgen.run import LoadRun, PreciseTimer, Schedule, run_load
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.durations import Chunk
from ridgeline.workload.arrivals import paced_arrivals


class ScriptedSender:
    """Answers one token after `service_s`, one request at a time if `is_serial`; stalls as told."""

    def __init__(
        self, service_s: float, *, is_serial: bool = False, stall: tuple[float, float] = (0, 0)
    ) -> None:
        self.service_s = service_s
        self.lock = asyncio.Lock() if is_serial else None
        self.stall = stall
        self.num_in_flight = self.most_in_flight = 0

    async def send(self, request: PreparedRequest, scheduled_at_s: float) -> ClientRecord:
        now = asyncio.get_running_loop().time
        sent_at_s = now()
        self.num_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
        outcome, chunks = Outcome.OK, []
        try:
            if self.lock is not None:
                await self.lock.acquire()
            if self.stall[0] <= now() < self.stall[1]:
                await asyncio.sleep(self.stall[1] - now())
            await asyncio.sleep(self.service_s)
            chunks = [Chunk(now(), 1)]
        except asyncio.CancelledError:
            outcome = Outcome.ABORTED
        finally:
            self.num_in_flight -= 1
            if self.lock is not None and self.lock.locked():
                self.lock.release()
        return ClientRecord(
            request_id=request.request_id,
            scheduled_at_s=scheduled_at_s,
            sent_at_s=sent_at_s,
            chunks=chunks,
            outcome=outcome,
            closed_at_s=now(),
        )


def run(
    sender: ScriptedSender, arrivals_s: list[float], cap: int | None = None, stop_at_s: float | None = None
) -> LoadRun:
    async def work() -> LoadRun:
        stop = asyncio.Event()
        if stop_at_s is not None:
            asyncio.get_running_loop().call_later(stop_at_s, stop.set)
        requests = [PreparedRequest(request_id=str(index), body=b"{}") for index in range(len(arrivals_s))]
        schedule = Schedule(arrivals_s=arrivals_s, max_concurrency=cap)
        return await run_load(sender, requests, schedule, stop=stop, sleep_until=sleep_until)

    return run_virtually(work())


def e2e_s(records: list[ClientRecord], *, from_send: bool = False) -> list[float]:
    starts = [r.sent_at_s if from_send else r.scheduled_at_s for r in records]
    return [r.chunks[-1].at_s - start for r, start in zip(records, starts, strict=True)]


def test_a_cap_in_an_open_loop_hides_no_waiting() -> None:
    arrivals = paced_arrivals(8, request_rate=10, burstiness=float("inf"), rng=Random(0))
    done = run(ScriptedSender(0.5), arrivals, cap=1)
    assert e2e_s(done.records, from_send=True) == pytest.approx([0.5] * 8)
    assert np.mean(e2e_s(done.records)) == pytest.approx(1.9)
    assert np.percentile(e2e_s(done.records), 99) == pytest.approx(3.272)
    assert [r.scheduled_at_s - done.started_at_s for r in done.records] == pytest.approx(arrivals)
    assert max(done.dispatch_lateness_s) == pytest.approx(0)


def test_a_stall_is_seen_by_all_whom_it_held_up() -> None:
    """A server that stalls for 2 s: a closed loop of one asks nobody meanwhile and loses one sample to it."""
    stall = (1.0, 3.0)
    closed = run(ScriptedSender(0.01, is_serial=True, stall=stall), [0.0] * 400, cap=1)
    open_loop = run(
        ScriptedSender(0.01, is_serial=True, stall=stall), [index / 100 + 0.01 for index in range(400)]
    )
    assert sum(each > 0.5 for each in e2e_s(closed.records)) == 1
    assert np.percentile(e2e_s(closed.records), 99) == pytest.approx(0.01)
    assert sum(each > 0.5 for each in e2e_s(open_loop.records)) > 100
    assert np.percentile(e2e_s(open_loop.records), 99) > 1.9


def test_a_closed_loop_is_scheduled_when_a_place_is_free() -> None:
    sender = ScriptedSender(0.5)
    done = run(sender, [0.0] * 8, cap=2)
    assert sender.most_in_flight == 2
    assert e2e_s(done.records) == pytest.approx([0.5] * 8)
    assert done.finished_at_s - done.started_at_s == pytest.approx(2.0)


def test_without_a_cap_nothing_waits() -> None:
    sender = ScriptedSender(5.0)
    done = run(sender, [0.1 * index for index in range(8)])
    assert sender.most_in_flight == 8
    assert [r.sent_at_s for r in done.records] == pytest.approx([0.1 * index for index in range(8)])


@pytest.mark.parametrize("cap", [None, 1, 3])
def test_a_stop_keeps_what_was_done(cap: int | None) -> None:
    done = run(ScriptedSender(0.35), [0.1 * (index + 1) for index in range(8)], cap=cap, stop_at_s=0.52)
    assert done.was_interrupted
    assert done.records[0].outcome is Outcome.OK
    assert done.records[-1].outcome is Outcome.ABORTED
    assert len(done.records) + done.num_not_sent == 8
    assert len(done.records) == {None: 5, 1: 2, 3: 4}[cap]


def test_a_stop_before_the_first_send() -> None:
    done = run(ScriptedSender(0.1), [1.0, 2.0], stop_at_s=0.5)
    assert (len(done.records), done.num_not_sent) == (0, 2)


def test_a_mistake_of_ours_is_not_swallowed() -> None:
    class Broken(ScriptedSender):
        async def send(self, request: PreparedRequest, scheduled_at_s: float) -> ClientRecord:
            raise AssertionError("ours")

    with pytest.raises(AssertionError, match="ours"):
        run(Broken(0), [0.0])


def test_the_real_timer_never_wakes_early() -> None:
    async def work() -> list[float]:
        timer, loop, late = PreciseTimer(), asyncio.get_running_loop(), []
        for index in range(5):
            at_s = loop.time() + 0.003 * index
            await timer.sleep_until(at_s)
            late.append(loop.time() - at_s)
        timer.close()
        return late

    assert min(asyncio.run(work())) >= 0
