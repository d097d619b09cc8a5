"""What-if: which steps are asked about, and which answers a run can check."""

from __future__ import annotations

import pytest
from tests.explain.scripted_runs import STEP_S, run_record, step_record
from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.errors import ConfigError
from ridgeline.explain import questions
from ridgeline.explain.questions import NOT_RUNNABLE, scenario_steps, what_if_document, what_ifs
from ridgeline.explain.recorder import RunRecord
from ridgeline.perf.step_shape import StepRow
from ridgeline.perf.what_if_changes import parse_changes


def run_of_two() -> RunRecord:
    rows = [
        [StepRow(0, 8, 1), StepRow(0, 4, 0)],
        [StepRow(8, 1, 1), StepRow(4, 4, 1)],
        [StepRow(9, 1, 1), StepRow(8, 1, 1)],
        [StepRow(10, 1, 1), StepRow(9, 1, 1)],
        [StepRow(10, 1, 1)],
    ]
    return run_record(
        [
            step_record(107 + STEP_S * i, each, request_ids=["q", "r"][: len(each)])
            for i, each in enumerate(rows[:4])
        ]
    )


def never(num_threads: int, num_requests: int):
    raise AssertionError("no run is needed")


def test_the_largest_prefill_and_a_full_decode_are_asked_about() -> None:
    steps = scenario_steps(run_of_two())
    assert steps["prefill"].num_tokens == 12
    assert steps["decode"].rows == [StepRow(10, 1, 1), StepRow(9, 1, 1)]


def test_several_changes_are_answered_alone_and_together() -> None:
    answers = what_ifs(SHAPE, PROFILE, run_of_two(), parse_changes(["batch=4", "kv_dtype=int8"]))
    asked = [(phase, [change.text for change in answer.changes]) for phase, answer in answers]
    both = ["kv_dtype=int8", "batch=4"]
    assert asked == [
        (phase, each) for phase in ("prefill", "decode") for each in ([both[0]], [both[1]], both)
    ]


@pytest.mark.parametrize("question", ["hardware=h100", "bandwidth=2x", "compute=2x", "kv_dtype=int8"])
def test_what_no_run_here_can_show_says_why(question) -> None:
    answers = what_ifs(SHAPE, PROFILE, run_of_two(), parse_changes([question]))
    for phase, answer in answers:
        document = what_if_document(phase, answer, "text", never)
        assert document["checked"] is None
        assert document["changes"] == [question]
        name = question.partition("=")[0]
        reason = NOT_RUNNABLE[name] if phase == "decode" else "only decode steps are run"
        assert document["not_checked"] == reason


@pytest.mark.parametrize("asked", [["weights=q8_0"], ["weights=f16", "batch=3"]])
def test_other_weights_are_run_made_up(asked) -> None:
    answers = what_ifs(SHAPE, PROFILE, run_of_two(), parse_changes(asked))
    phase, answer = answers[-1]
    document = what_if_document(phase, answer, "text", never)
    assert document["not_checked"] is None
    assert document["checked"]["weights"] == "made up"
    measured_s = document["checked"]["measured_s"]
    assert document["checked"]["error"] == document["after_s"] / measured_s - 1
    assert measured_s > 0


def test_made_up_weights_that_would_fill_the_memory_are_not_made(monkeypatch) -> None:
    monkeypatch.setattr(questions, "available_memory_bytes", lambda: 1000)
    _, (_, answer) = what_ifs(SHAPE, PROFILE, run_of_two(), parse_changes(["weights=q8_0"]))
    assert "would take" in what_if_document("decode", answer, "text", never)["not_checked"]


def test_a_run_that_would_take_minutes_is_left_out() -> None:
    ((_, prefill), (_, decode)) = what_ifs(SHAPE, PROFILE, run_of_two(), parse_changes(["batch=100000"]))
    assert "only decode" in what_if_document("prefill", prefill, "text", never)["not_checked"]
    assert "would take some" in what_if_document("decode", decode, "text", never)["not_checked"]


def test_unknown_questions_are_refused() -> None:
    with pytest.raises(ConfigError, match="colour"):
        parse_changes(["colour=red"])
