"""Each cause of a late token, out of an invented log; and an honest "unknown"."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.core import events as ev
from ridgeline.metrics.request_timeline import request_timeline
from ridgeline.outputs import FinishReason

Row = tuple[str, int, int]


class Log:
    """Writes steps as the engine does."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.now = 0.0

    def arrive(self, request_id: str, prompt: int, *, after_s: float = 0.0) -> None:
        self.events.append(ev.RequestArrived(self.now + after_s, request_id, self.now, prompt))
        self.now += after_s

    def start(self, request_id: str, cached: int = 0) -> None:
        self.events.append(ev.RequestScheduled(self.now, request_id, cached))

    def step(self, seconds: float, *rows: Row, gives: tuple[str, ...] | None = None) -> None:
        self.now += seconds
        names = tuple(row[0] for row in rows) if gives is None else gives
        self.events.append(ev.TokensEmitted(self.now, tuple((name, 1) for name in names)))
        self.events.append(ev.StepFinished(self.now, len(self.events), rows, seconds, {}))

    def late(self, request_id: str = "a") -> list[dict[str, Any]]:
        document = request_timeline(self.events, request_id)
        assert document is not None
        return document["late_tokens"]

    def causes(self, token: int, request_id: str = "a") -> list[str]:
        return [entry["cause"] for entry in self.late(request_id) if entry["token"] == token]


def running() -> Log:
    """Request `a` after two tokens."""
    log = Log()
    log.arrive("a", 8)
    log.start("a")
    log.step(0.01, ("a", 0, 8))
    log.step(0.01, ("a", 8, 1))
    return log


def test_a_prefill_that_shared_the_step() -> None:
    log = running()
    log.arrive("b", 90)
    log.start("b")
    log.step(0.1, ("a", 9, 1), ("b", 0, 90))
    (entry,) = (each for each in log.late() if each["token"] == 2)
    assert (entry["cause"], entry["by"], entry["num_tokens"]) == ("shared_prefill", "b", 90)
    assert entry["share"] == pytest.approx(90 / 91)
    assert "90 prompt tokens of b" in entry["text"]


def test_a_preemption_names_who_took_the_blocks() -> None:
    log = running()
    log.events.append(ev.RequestPreempted(log.now, "a", "b", 9))
    log.now += 0.5
    log.events.append(ev.RequestScheduled(log.now, "a", 0, resumed=True))
    log.step(0.01, ("a", 0, 10))
    (entry,) = (each for each in log.late() if each["token"] == 2)
    assert (entry["cause"], entry["by"]) == ("preempted", "b")


def test_a_first_token_queued_behind_others() -> None:
    log = running()
    log.arrive("c", 4)
    log.step(0.2, ("a", 9, 1))
    log.start("c")
    log.step(0.01, ("a", 10, 1), ("c", 0, 4))
    (entry, *_) = (each for each in log.late("c") if each["token"] == 0)
    assert (entry["cause"], entry["behind"], entry["kind"]) == ("queue", ["a"], "ttft")


def test_a_first_token_that_waited_for_the_tokenizer() -> None:
    log = Log()
    log.arrive("a", 8, after_s=0.5)
    log.start("a")
    log.step(0.01, ("a", 0, 8))
    assert log.causes(0) == ["tokenizer"]


def test_its_own_long_prompt() -> None:
    log = Log()
    log.arrive("a", 800)
    log.start("a", cached=300)
    log.step(0.5, ("a", 300, 500))
    (entry,) = log.late()
    assert (entry["cause"], entry["num_tokens"], entry["share"]) == ("prefill", 500, 1.0)


def test_a_batch_that_grew() -> None:
    log = running()
    log.step(0.03, ("a", 9, 1), *((f"r{i}", 5, 1) for i in range(7)))
    assert "batch_growth" in log.causes(2)


def test_a_client_that_reads_slowly() -> None:
    log = running()
    log.events.append(ev.DeltasCoalesced(log.now + 0.005, "a", 6))
    log.step(0.01, ("a", 9, 1))
    assert log.causes(2) == ["client_backpressure"]


def test_time_outside_steps_is_told_apart() -> None:
    log = running()
    log.now += 1.0
    log.step(0.01, ("a", 9, 1))
    assert log.causes(2) == ["outside_step"]


def test_what_the_log_does_not_tell_is_unknown() -> None:
    log = running()
    log.step(0.5, ("a", 9, 1))
    assert log.causes(2) == ["unknown"]


def test_a_first_token_within_its_limit_is_not_late() -> None:
    log = running()
    document = request_timeline(log.events, "a", ttft_slo_s=0.5)
    assert document is not None
    assert [entry["token"] for entry in document["late_tokens"]] == [1]


def test_the_timeline_by_hand() -> None:
    log = running()
    log.arrive("b", 4)
    log.start("b")
    log.events.append(ev.RequestFinished(log.now + 0.02, "a", FinishReason.STOP, 3))
    log.step(0.02, ("a", 9, 1), ("b", 0, 4))
    document = request_timeline(log.events, "a")
    assert document is not None
    assert [each["what"] for each in document["happenings"]] == ["queued", "scheduled", "finished"]
    assert (document["completion_tokens"], document["finish_reason"]) == (3, "stop")
    assert [step["shared_with"] for step in document["steps"]] == [{}, {}, {"b": 4}]
    assert (document["queue_s"], document["num_preemptions"]) == (0.0, 0)
    assert request_timeline(log.events, "nobody") is None
