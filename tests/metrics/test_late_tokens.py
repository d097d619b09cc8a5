"""Each cause of a late token, out of an invented log; and an honest "unknown"."""

from __future__ import annotations

from typing import Any

import pytest

from ridgeline.core import events as ev
from ridgeline.metrics.request_timeline import request_timeline
from ridgeline.metrics.step_shares import decode_step_near, prompt_seconds
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

    def step(
        self,
        seconds: float,
        *rows: Row,
        gives: tuple[str, ...] | None = None,
        predicted: dict[str, float] | None = None,
    ) -> None:
        self.now += seconds
        names = tuple(row[0] for row in rows) if gives is None else gives
        self.events.append(ev.TokensEmitted(self.now, tuple((name, 1) for name in names)))
        self.events.append(ev.StepFinished(self.now, len(self.events), rows, seconds, {}, predicted))

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
    assert entry["weighed_by"] == "tokens"
    assert entry["share"] == pytest.approx(90 / 91)
    assert "90 prompt tokens of b" in entry["text"]


def test_a_shared_prefill_weighs_what_it_was_predicted_to_add() -> None:
    """Predicted 10 ms without b and 100 ms with it, 90 of which it adds; measured 120 ms: 108 are b's."""
    log = Log()
    log.arrive("a", 8)
    log.start("a")
    log.step(0.01, ("a", 0, 8))
    log.step(0.01, ("a", 8, 1), predicted={"gate_up_proj": 0.008, "attention": 0.001, "lm_head": 0.001})
    log.arrive("b", 90)
    log.start("b")
    log.step(
        0.12,
        ("a", 9, 1),
        ("b", 0, 90),
        predicted={"gate_up_proj": 0.08, "attention": 0.019, "lm_head": 0.001},
    )
    (entry,) = (each for each in log.late() if each["token"] == 2)
    assert (entry["cause"], entry["by"], entry["weighed_by"]) == ("shared_prefill", "b", "prediction")
    assert entry["share"] == pytest.approx(0.9)
    assert "90 prompt tokens of b: 108.0 ms, predicted to add" in entry["text"]


def test_two_shared_prefills_weigh_by_their_work() -> None:
    """Of 60 added ms of a product b has 2/3 by tokens; of 30 of attention 60·30.5 of 60·30.5 + 30·115.5."""
    decodes, both = {"qkv_proj": 0.01, "attention": 0.0}, {"qkv_proj": 0.07, "attention": 0.03}
    alone = ev.StepFinished(0.1, 0, (("a", 8, 1),), 0.01, {}, decodes)
    step = ev.StepFinished(0.2, 1, (("a", 9, 1), ("b", 0, 60), ("c", 100, 30)), 0.1, {}, both)
    added = prompt_seconds(step, alone)
    share = 60 * 30.5 / (60 * 30.5 + 30 * 115.5)
    assert added == {
        "b": pytest.approx(0.04 + 0.03 * share),
        "c": pytest.approx(0.02 + 0.03 * (1 - share)),
    }


def test_without_a_step_of_decodes_all_rows_share_the_prediction() -> None:
    step = ev.StepFinished(0.2, 1, (("a", 9, 1), ("b", 0, 3)), 0.2, {}, {"qkv_proj": 0.08, "lm_head": 0.02})
    assert prompt_seconds(step, None) == {"b": pytest.approx(2 * (0.08 * 3 / 4 + 0.02 / 2))}


def test_a_cheaper_step_than_without_adds_nothing() -> None:
    step = ev.StepFinished(0.2, 1, (("a", 9, 1), ("b", 0, 3)), 0.2, {}, {"qkv_proj": 0.08})
    alone = ev.StepFinished(0.1, 0, (("a", 8, 1),), 0.1, {}, {"qkv_proj": 0.09})
    assert prompt_seconds(step, alone) == {"b": 0.0}
    assert prompt_seconds(ev.StepFinished(0.2, 1, (("b", 0, 3),), 0.2, {}, {}), None) == {"b": 0.2}


def test_the_step_of_decodes_before_goes_before_the_one_after() -> None:
    def step(at_s: float, *rows: Row, predicted: bool = True) -> ev.StepFinished:
        return ev.StepFinished(at_s, 0, rows, 0.1, {}, {"qkv_proj": 0.1} if predicted else None)

    mixed = step(3.0, ("a", 9, 1), ("b", 0, 90))
    before, after = step(1.0, ("a", 8, 1)), step(4.0, ("a", 10, 1), ("b", 90, 1))
    unpredicted = step(2.0, ("a", 8, 1), predicted=False)
    assert decode_step_near([before, unpredicted, mixed, after], 2) is before
    assert decode_step_near([mixed, after], 0) is after
    assert decode_step_near([mixed], 0) is None
    assert decode_step_near([before, unpredicted], 1) is None


def queued_behind(*lacks: tuple[float, ev.Lack]) -> dict[str, Any]:
    """The first cause of `c`, queued at 0.02 s and admitted at 0.22 s; each lack begins at its instant."""
    log = running()
    log.arrive("c", 4)
    log.events += [ev.AdmissionHeld(at_s, "c", lack) for at_s, lack in lacks]
    log.step(0.2, ("a", 9, 1))
    log.start("c")
    log.step(0.01, ("a", 10, 1), ("c", 0, 4))
    return next(each for each in log.late("c") if each["token"] == 0)


@pytest.mark.parametrize(
    ("lack", "words"),
    [
        (ev.Lack.SEQS, "a place among the running (max_num_seqs)"),
        (ev.Lack.BLOCKS, "KV blocks"),
        (ev.Lack.TOKENS, "tokens of a step"),
        (ev.Lack.PREFILLS, "prompts under computation"),
    ],
)
def test_a_wait_says_what_was_lacking(lack: ev.Lack, words: str) -> None:
    entry = queued_behind((0.02, lack))
    assert (entry["cause"], entry["lack"]) == ("queue", lack)
    assert entry["lacks_ms"] == {lack: pytest.approx(200)}
    assert f"200.0 ms for {words}" in entry["text"]


def test_a_wait_for_several_things_is_split() -> None:
    entry = queued_behind((0.02, ev.Lack.SEQS), (0.07, ev.Lack.BLOCKS))
    assert entry["lack"] is ev.Lack.BLOCKS
    assert entry["lacks_ms"] == {"kv_blocks": pytest.approx(150), "max_num_seqs": pytest.approx(50)}


def test_a_wait_behind_the_first_in_the_queue_is_for_what_that_one_lacks() -> None:
    """b is first and lacks blocks from 0.01 s on; admitted at 0.12 s; then c lacks a place until 0.22."""
    log = running()
    log.events.append(ev.AdmissionHeld(0.01, "b", ev.Lack.BLOCKS))
    log.arrive("c", 4)
    log.step(0.1, ("a", 9, 1))
    log.start("b")
    log.events.append(ev.AdmissionHeld(log.now, "c", ev.Lack.SEQS))
    log.step(0.1, ("a", 10, 1), ("b", 0, 1))
    log.start("c")
    log.step(0.01, ("c", 0, 4))
    entry = next(each for each in log.late("c") if each["token"] == 0)
    assert entry["lacks_ms"] == {"kv_blocks": pytest.approx(100), "max_num_seqs": pytest.approx(100)}


def test_a_wait_that_nobody_was_held_in_is_for_the_step_under_way() -> None:
    """The one who was held has gone before c came."""
    log = Log()
    log.events.append(ev.AdmissionHeld(0.0, "b", ev.Lack.BLOCKS))
    log.events.append(ev.RequestFinished(0.01, "b", FinishReason.ABORT, 0))
    log.now = 0.02
    log.arrive("c", 4)
    log.now = 0.05
    log.start("c")
    log.step(0.01, ("c", 0, 4))
    entry = next(each for each in log.late("c") if each["cause"] == "queue")
    assert (entry["lack"], entry["lacks_ms"]) == (None, {})
    assert entry["text"] == "waited 30.0 ms: for the step under way"


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


def test_a_first_token_that_came_into_a_step() -> None:
    """a's step of 200 ms ends 150 ms after c came; tokenising took 30 ms more than that."""
    log = running()
    came_at_s = log.now + 0.05
    log.step(0.2, ("a", 9, 90))
    log.events.append(ev.RequestArrived(log.now + 0.03, "c", came_at_s, 4))
    log.now += 0.03
    log.start("c")
    log.step(0.02, ("c", 0, 4))
    step, tokenizer, own = (each for each in log.late("c") if each["token"] == 0)
    assert (step["cause"], step["num_tokens"], step["share"]) == ("step_under_way", 90, pytest.approx(0.75))
    assert step["text"] == "came 150.0 ms before the end of a step of 90 tokens of 1 requests"
    assert (tokenizer["cause"], tokenizer["share"]) == ("tokenizer", pytest.approx(0.15))
    assert (own["cause"], own["share"]) == ("prefill", pytest.approx(0.1))


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
