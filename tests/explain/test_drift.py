"""Drift of one run: what its steps took against what was predicted before, and who is blamed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.explain.scripted_runs import STEP_S, predicted, run_record, step_record
from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.engine.step_forecast import StepForecast
from ridgeline.explain.explanation import drift_document, run_drift
from ridgeline.explain.phases import STEP_OPS, StepAccountant
from ridgeline.explain.recorder import Recorder, RunRecord
from ridgeline.perf.predict import STEP_OVERHEAD, Predictor
from ridgeline.perf.step_shape import StepRow, StepShape
from ridgeline.sampling_params import SamplingParams


def run_that_takes(factors: Mapping[str, float]) -> RunRecord:
    """A prompt and two tokens whose ops take `factors` times the predicted seconds."""
    steps = []
    for index, row in enumerate([StepRow(0, 8, 1), StepRow(8, 1, 1), StepRow(9, 1, 1)]):
        expected = predicted(StepShape([row])).op_s
        seconds = {op: s * factors.get(op, factors.get("all", 1.0)) for op, s in expected.items()}
        own_s = seconds.pop(STEP_OVERHEAD)
        at_s = 107 + STEP_S * index
        finished_at_s = at_s + sum(seconds.values())
        steps.append(
            replace(
                step_record(at_s, [row]),
                scheduled_at_s=at_s,
                started_at_s=at_s,
                finished_at_s=finished_at_s,
                committed_at_s=finished_at_s + own_s,
                op_seconds=seconds,
                host_seconds={},
                forecast_s=0.0,
            )
        )
    return run_record(steps)


def drift_of(run: RunRecord):
    return run_drift(list(StepAccountant(SHAPE, PROFILE).phases(run).values()))


@pytest.mark.parametrize("factors", [{}, {"all": 1.2}, {"all": 0.8}, {"attention": 1.5}])
def test_a_run_as_predicted_does_not_drift(factors) -> None:
    assert drift_of(run_that_takes(factors)) is None
    assert drift_document(None) is None


@pytest.mark.parametrize(
    ("factors", "op", "words"),
    [
        ({"gate_up_proj": 4.0}, "gate_up_proj", "memory bus"),
        ({"all": 2.0}, None, "all ops are slow alike"),
        ({"all": 0.5}, None, "calibrate"),
        ({STEP_OVERHEAD: 30.0}, STEP_OVERHEAD, "Python"),
    ],
)
def test_a_run_off_by_a_quarter_names_the_op_and_a_cause(factors, op, words) -> None:
    drift = drift_of(run_that_takes(factors))
    assert drift is not None
    assert words in drift.cause
    if op is not None:
        assert (drift.op, drift.op_ratio) == (op, pytest.approx(factors[op]))
    else:
        assert drift.ratio == pytest.approx(factors["all"])
    made = drift_document(drift)
    assert made["text"].startswith(f"steps take {drift.ratio:.2f} × the predicted time: {drift.op}")


def test_the_seconds_are_those_of_the_engines_clock(new_bench) -> None:
    """On a clock that strides by whole seconds, steps predicted at milliseconds drift; and it is the engine's
    own work that does, for the scripted executor's ops take none of it.
    """
    drifts = []
    for stride_s in (1.0, 1e-9):
        bench = new_bench({"explain-1-0": "abcd"})
        bench.clock.now = _strides(stride_s)
        bench.engine._forecast = StepForecast(Predictor(SHAPE, PROFILE))
        recorder = Recorder(bench.engine, bench.inputs, bench.inputs._tokenizer)
        run = recorder.run(lambda: list(b"hello"), SamplingParams(temperature=0, max_tokens=4))
        run = replace(run, steps=[replace(step, op_seconds={}) for step in run.steps])
        drifts.append(drift_of(run))
    slow, fast = drifts
    assert slow.op == STEP_OVERHEAD
    assert slow.ratio > 100
    assert fast.ratio < 0.01


def test_without_a_prediction_there_is_no_drift() -> None:
    run = run_that_takes({"all": 9.0})
    steps = [replace(run.steps[0], prediction=None), *run.steps[1:]]
    assert drift_of(run_record(steps)) is None


def test_an_op_that_was_not_predicted_at_all_still_makes_a_document() -> None:
    run = run_that_takes({})
    nothing = dict.fromkeys(STEP_OPS, 0.0) | {"sample": 0.0, "lm_head": 1e-3}
    steps = [
        replace(step, prediction=step.prediction._replace(op_s=nothing), op_seconds={"sample": 1.0})
        for step in run.steps
    ]
    drift = drift_of(run_record(steps))
    assert math.isinf(drift.op_ratio)
    assert drift_document(drift)["op_ratio"] is None


def _strides(stride_s: float):
    seconds = 0.0

    def now() -> float:
        nonlocal seconds
        seconds += stride_s
        return seconds

    return now
