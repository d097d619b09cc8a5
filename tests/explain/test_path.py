"""Every second between arrival and last character is on one step of the path, once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.explain.scripted_runs import STEP_S, run_record, step_record
from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.explain.path import PATH_STEPS, own_steps, request_path, timeline
from ridgeline.explain.phases import STEP_OPS, StepAccountant
from ridgeline.perf.step_shape import StepRow


def two_chunks_and_two_tokens() -> list:
    rows = [StepRow(0, 5, 0), StepRow(5, 3, 1), StepRow(8, 1, 1), StepRow(9, 1, 1)]
    return [
        step_record(107 + STEP_S * index, [row], sample_s=float(row.num_logits_rows))
        for index, row in enumerate(rows)
    ]


def test_the_steps_are_what_the_instants_say() -> None:
    path = request_path(run_record(two_chunks_and_two_tokens()))
    assert tuple(path) == PATH_STEPS
    seconds = {name: step.seconds for name, step in path.items()}
    # Prefill and decode: scheduling 1, execution 10 less sampling, commit 3. Between the steps: 1 + 3 each.
    assert seconds == {
        "tokenize": 4.0,
        "queue": 3.0,
        "prefill": 14.0 + 13.0,
        "decode": 13.0 + 13.0,
        "sample": 3.0,
        "detokenize": 8.0,
        "unaccounted": 4 * 1.0 + 3 * 3.0,
    }
    assert {name: step.count for name, step in path.items()} == {
        "tokenize": 1,
        "queue": 1,
        "prefill": 2,
        "decode": 2,
        "sample": 3,
        "detokenize": 3,
        "unaccounted": 1,
    }


def test_nothing_is_counted_twice_or_lost() -> None:
    run = run_record(two_chunks_and_two_tokens())
    path = request_path(run)
    assert sum(step.seconds for step in path.values()) == pytest.approx(run.wall_s)
    for step in path.values():
        assert sum(step.parts.values()) == pytest.approx(step.seconds)
        assert all(seconds >= 0 for seconds in step.parts.values())


def test_a_gap_between_steps_is_unaccounted_and_no_step_grows_by_it() -> None:
    steps = two_chunks_and_two_tokens()
    late = [*steps[:3], step_record(107 + 3 * STEP_S + 1000, steps[3].shape.rows)]
    before, after = request_path(run_record(steps)), request_path(run_record(late))
    assert after["unaccounted"].seconds - before["unaccounted"].seconds == 1000
    for name in PATH_STEPS[:-1]:
        assert after[name].seconds == before[name].seconds


def test_what_no_reading_of_the_clock_covers_is_unaccounted_inside_a_step_too() -> None:
    steps = two_chunks_and_two_tokens()
    slower = [replace(step, forecast_s=0.0) for step in steps]  # as if nobody had timed the forecast
    before, after = request_path(run_record(steps)), request_path(run_record(slower))
    assert after["unaccounted"].seconds - before["unaccounted"].seconds == 4 * 0.25
    assert before["decode"].seconds - after["decode"].seconds == 2 * 0.25
    assert after["decode"].parts["predicting its time"] == 0
    phases = StepAccountant(SHAPE, PROFILE).phases(run_record(slower))
    assert phases["decode"].document()["op_share"] == 1 - 0.25 / 14
    assert phases["decode"].document()["seconds"] == 2 * 14.0


def test_steps_of_others_are_waiting() -> None:
    other = step_record(107, [StepRow(0, 8, 1)], request_ids=["other"])
    own = step_record(107 + STEP_S, [StepRow(8, 1, 1), StepRow(0, 8, 1)], request_ids=["other", "r"])
    after_end = step_record(107 + 2 * STEP_S, [StepRow(9, 1, 1)], request_ids=["other"])
    run = run_record([other, own, after_end])
    path = request_path(run)
    assert path["queue"].parts == {"steps of others": 20.0, "until its first step": 3.0}
    assert path["decode"].seconds == 0
    assert path["prefill"].seconds == 13.0
    assert sum(step.seconds for step in path.values()) == run.wall_s


def test_what_is_computed_again_is_prefill() -> None:
    steps = two_chunks_and_two_tokens()
    again = step_record(107 + 4 * STEP_S, [StepRow(0, 10, 1)])
    run = run_record([*steps, again])
    assert again in own_steps(run, "prefill")
    assert request_path(run)["prefill"].count == 3


def test_ops_and_path_agree_on_the_seconds() -> None:
    run = run_record(two_chunks_and_two_tokens())
    accountant, path = StepAccountant(SHAPE, PROFILE), request_path(run)
    for name in ("prefill", "decode"):
        ops = [op for op in STEP_OPS if op != "sample"]
        assert accountant.total(own_steps(run, name), ops).seconds == pytest.approx(path[name].seconds)
    everything = [*own_steps(run, "prefill"), *own_steps(run, "decode")]
    assert accountant.total(everything, ["sample"]).seconds == path["sample"].seconds


def test_the_timeline_shows_the_same_seconds_in_order() -> None:
    run = run_record(two_chunks_and_two_tokens())
    segments, path = timeline(run), request_path(run)
    whole_steps = [each for each in segments if each.step != "sample"]
    ends = [each.start_s + each.seconds for each in whole_steps]
    assert all(end <= after.start_s for end, after in zip(ends, whole_steps[1:], strict=False))
    assert ends[-1] == run.wall_s
    for name in ("tokenize", "queue", "sample", "detokenize"):
        assert sum(s.seconds for s in segments if s.step == name) == pytest.approx(path[name].seconds)
