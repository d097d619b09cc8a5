"""Predictions belong to the schedule alone: made before the step runs, the same on any clock."""

from __future__ import annotations

import pytest
from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.core.events import StepFinished
from ridgeline.core.request import Request
from ridgeline.core.step import ScheduledRequest, SchedulerOutput
from ridgeline.engine.step_forecast import StepForecast, step_shape_of
from ridgeline.perf.predict import STEP_OVERHEAD, Predictor
from ridgeline.perf.step_shape import StepRow, StepShape
from ridgeline.sampling_params import SamplingParams


class JumpyClock:
    """Far off, and with steps of another length than the bench's own clock."""

    def __init__(self, stride: float) -> None:
        self.seconds, self.stride = 1e6, stride

    def now(self) -> float:
        self.seconds += self.stride
        return self.seconds


def finished_steps(bench) -> list[StepFinished]:
    return [event for event in bench.log.events() if isinstance(event, StepFinished)]


def run_with(new_bench, *, stride: float) -> list[StepFinished]:
    bench = new_bench({"0": "abcdef", "1": "xyz"})
    bench.engine.clock = JumpyClock(stride)
    bench.engine._forecast = StepForecast(Predictor(SHAPE, PROFILE))
    bench.add("hello", max_tokens=5)
    bench.run(bench.add("a longer prompt", max_tokens=3))
    return finished_steps(bench)


def test_the_clock_does_not_change_predictions(new_bench) -> None:
    slow, fast = run_with(new_bench, stride=100.0), run_with(new_bench, stride=1e-6)
    assert slow
    assert [s.predicted_op_s for s in slow] == [s.predicted_op_s for s in fast]
    assert [s.bound_op_s for s in slow] == [s.bound_op_s for s in fast]
    assert slow[0].execute_s != fast[0].execute_s


def test_a_step_is_predicted_from_its_composition(new_bench) -> None:
    first, second, *_ = run_with(new_bench, stride=1.0)
    predictor = Predictor(SHAPE, PROFILE)
    for step in (first, second):
        rows = [StepRow(before, count, 1) for _, before, count in step.composition]
        assert step.predicted_op_s == predictor.predict(StepShape(rows)).op_s
        assert STEP_OVERHEAD in step.predicted_op_s


def test_predictions_are_made_before_the_step_runs(new_bench) -> None:
    bench = new_bench("ab")
    order: list[str] = []
    execute, forecast = bench.executor.execute, StepForecast(Predictor(SHAPE, PROFILE))

    def noting_execute(scheduler_output: SchedulerOutput) -> object:
        order.append("execute")
        return execute(scheduler_output)

    def noting_forecast(scheduler_output: SchedulerOutput) -> object:
        order.append("predict")
        return forecast(scheduler_output)

    bench.engine._executor = bench.executor
    bench.executor.execute = noting_execute
    bench.engine._forecast = noting_forecast
    bench.run(bench.add("hi", max_tokens=2))
    assert order == ["predict", "execute"] * 2


def test_without_a_calibrated_machine_nothing_is_predicted(new_bench) -> None:
    bench = new_bench("ab")
    bench.run(bench.add("hi", max_tokens=2))
    assert all(step.predicted_op_s is None and step.bound_op_s is None for step in finished_steps(bench))


@pytest.mark.parametrize(
    ("num_computed", "num_scheduled", "num_known", "rows"),
    [(0, 4, 0, 4), (0, 8, 0, 8), (4, 4, 0, 4), (4, 4, 6, 2), (0, 3, 5, 0)],
)
def test_prompt_logprobs_need_rows_of_logits(num_computed, num_scheduled, num_known, rows) -> None:
    request = Request(
        request_id="0",
        prompt_token_ids=list(range(8)),
        sampling_params=SamplingParams(max_tokens=2, prompt_logprobs=1),
        arrived_at_s=0.0,
        seed=0,
        max_num_tokens=10,
        num_prompt_logprobs=num_known,
    )
    scheduled = ScheduledRequest(request, num_computed, num_scheduled, [0])
    assert step_shape_of(SchedulerOutput(0, [scheduled])).rows == [StepRow(num_computed, num_scheduled, rows)]
