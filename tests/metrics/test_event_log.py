"""The event log's bound: what it keeps, what gives way, and how much a batch's events count."""

from __future__ import annotations

import gc
from enum import Enum
from pathlib import Path

from ridgeline import LLM, SamplingParams
from ridgeline.core.events import Event, RequestScheduled, StepFinished, TokensEmitted
from ridgeline.metrics.event_log import EventLog


def step(step_id: int, num_requests: int) -> StepFinished:
    return StepFinished(0.0, step_id, tuple((str(i), 7, 1) for i in range(num_requests)), 0.1, {})


def kept(log: EventLog) -> list[Event]:
    return list(log.events())


def test_the_oldest_give_way_one_by_one() -> None:
    log = EventLog(3)
    events = [RequestScheduled(float(i), str(i)) for i in range(5)]
    for event in events:
        log.record([event])
    assert kept(log) == events[2:]
    assert log.num_dropped_events == 2


def test_a_batchs_event_counts_by_its_requests() -> None:
    log = EventLog(10)
    small = [RequestScheduled(float(i), str(i)) for i in range(10)]
    log.record(small)
    large = step(1, 32)  # counts 9
    log.record([large])
    assert kept(log) == [small[-1], large]
    tokens = TokensEmitted(1.0, tuple((str(i), 1) for i in range(8)))  # counts 3
    log.record([tokens])
    assert kept(log) == [tokens]
    assert log.num_dropped_events == 11


def test_a_long_log_makes_no_collection_longer(tiny_model: Path) -> None:
    """Nothing that events of a real run hold is seen by the garbage collector, once it has met it."""
    with LLM(str(tiny_model), kv_cache_bytes=2**22) as llm:
        llm.generate([[5] * 40] * 3, SamplingParams(n=2, max_tokens=9, ignore_eos=True), progress=False)
        events = llm.parts.event_log.events()
    gc.collect()
    gc.collect()  # what holds only untracked objects is let go by the second pass, if not by the first
    values = [getattr(event, name) for event in events for name in event.__struct_fields__]
    assert len(values) > 100
    seen = [value for value in (*events, *values) if gc.is_tracked(value)]
    assert [value for value in seen if not isinstance(value, Enum)] == []


def test_the_newest_stays_though_it_counts_more_than_the_log_holds() -> None:
    log = EventLog(2)
    log.record([step(1, 64)])
    assert len(kept(log)) == 1
    last = step(2, 64)
    log.record([last])
    assert kept(log) == [last]
    log.record([RequestScheduled(1.0, "a"), RequestScheduled(2.0, "b")])
    assert [type(event) for event in kept(log)] == [RequestScheduled, RequestScheduled]
