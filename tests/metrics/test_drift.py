"""Drift on an invented clock: when it is flagged, what is blamed, and that it is reported once."""

from __future__ import annotations

import pytest

from ridgeline.core.events import StepFinished
from ridgeline.metrics.drift import Drift, DriftWatch, find_drift

PREDICTED = {"attention": 0.02, "down_proj": 0.06, "lm_head": 0.01, "step_overhead": 0.01}


class Steps:
    """Steps of 0.1 s, one every 0.1 s, whose ops take `factors` times the prediction."""

    def __init__(self) -> None:
        self.reported: list[Drift] = []
        self.watch = DriftWatch(self.reported.append)
        self.now = 100.0

    def run(self, seconds: float, every_s: float = 0.1, **factors: float) -> None:
        end = self.now + seconds
        while self.now < end:
            measured = {op: s * factors.get(op, 1.0) for op, s in PREDICTED.items() if op != "step_overhead"}
            overhead = PREDICTED["step_overhead"] * factors.get("step_overhead", 1.0)
            execute_s = sum(measured.values()) + overhead
            self.now += every_s
            self.watch.record([StepFinished(self.now, 0, (), execute_s, measured, dict(PREDICTED))])


def test_steps_as_predicted_are_no_drift() -> None:
    steps = Steps()
    steps.run(200, attention=1.2, down_proj=0.9)
    assert steps.watch.drift is None
    assert steps.reported == []


def test_an_op_that_slows_down_is_flagged_within_a_minute_and_reported_once() -> None:
    steps = Steps()
    steps.run(100)
    steps.run(30, attention=3.5)
    assert steps.watch.drift is None  # 25 % over half a minute are not 25 % over a minute
    steps.run(60, attention=3.5)
    (drift,) = steps.reported
    assert drift.op == "attention"
    assert 1.25 < drift.ratio < 1.51
    assert "memory bus" in drift.cause
    assert str(drift).startswith("steps take 1.")
    assert steps.watch.drift is not None
    assert steps.watch.drift.op_ratio == pytest.approx(3.5, rel=0.01)


def test_a_drift_that_ended_can_be_reported_again() -> None:
    steps = Steps()
    for _ in range(2):
        steps.run(130, attention=4.0)
        assert steps.watch.drift is not None
        steps.run(130)
        assert steps.watch.drift is None
    assert len(steps.reported) == 2


def test_the_first_minute_is_not_judged() -> None:
    steps = Steps()
    steps.run(58, attention=9.0)
    assert steps.watch.drift is None


def test_a_minute_with_little_work_says_nothing() -> None:
    steps = Steps()
    steps.run(200, every_s=10.0, attention=9.0)
    assert steps.watch.drift is None


def test_after_an_idle_hour_old_steps_are_forgotten() -> None:
    steps = Steps()
    steps.run(130, attention=4.0)
    steps.now += 3600
    steps.run(70)
    assert steps.watch.drift is None


def test_steps_without_prediction_are_skipped() -> None:
    watch = DriftWatch()
    watch.record([StepFinished(float(i), i, (), 9.0, {"attention": 9.0}) for i in range(200)])
    assert watch.drift is None


@pytest.mark.parametrize(
    ("factors", "op", "words"),
    [
        ({"attention": 1.8, "down_proj": 1.8, "lm_head": 1.8, "step_overhead": 1.8}, "down_proj", "alike"),
        ({"attention": 3.5}, "attention", "memory bus"),
        ({"down_proj": 1.6, "lm_head": 1.0}, "down_proj", "shared cache"),
        ({"step_overhead": 6.0}, "step_overhead", "Python"),
        ({"down_proj": 0.4}, "down_proj", "faster"),
    ],
)
def test_the_blamed_op_and_its_likely_cause(factors: dict[str, float], op: str, words: str) -> None:
    measured = {name: 100 * s * factors.get(name, 1.0) for name, s in PREDICTED.items()}
    drift = find_drift(measured, {name: 100 * s for name, s in PREDICTED.items()})
    assert drift is not None
    assert drift.op == op
    assert words in drift.cause
    assert drift.op_ratio == pytest.approx(factors[op])


def test_sampling_that_was_not_predicted_is_named() -> None:
    drift = find_drift({"sample": 3.0, "lm_head": 4.0}, {"sample": 0.5, "lm_head": 4.0})
    assert drift is not None
    assert "greedy" in drift.cause
    assert find_drift({"new": 9.0, "lm_head": 1.0}, {"lm_head": 1.0}).op_ratio == float("inf")


def test_a_drift_that_comes_and_goes_is_reported_once_a_minute() -> None:
    steps = Steps()
    steps.run(130, attention=2.2)  # steps take 1.24 × the prediction
    assert steps.reported == []
    num_begun, was_drifting = 0, False
    for _ in range(40):
        for factor in (6.0, 0.3, 0.3):
            steps.run(1.0, attention=factor)
            is_drifting = steps.watch.drift is not None
            num_begun += is_drifting and not was_drifting
            was_drifting = is_drifting
    assert num_begun > 5
    assert 1 <= len(steps.reported) <= 3
