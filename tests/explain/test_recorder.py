"""The recorder runs requests on the engine itself, and stamps every change of hands."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.engine.step_forecast import StepForecast
from ridgeline.errors import RequestError
from ridgeline.explain.path import request_path
from ridgeline.explain.recorder import Recorder, RunRecord
from ridgeline.outputs import FinishReason
from ridgeline.perf.predict import Predictor
from ridgeline.sampling_params import SamplingParams


class StridingClock:
    """Every reading is one stride after the last."""

    def __init__(self, stride_s: float) -> None:
        self.seconds, self.stride_s = 0.0, stride_s

    def now(self) -> float:
        self.seconds += self.stride_s
        return self.seconds


def record(bench, *, num_requests: int = 1, prompt: str = "hello", **params) -> RunRecord:
    bench.engine._forecast = StepForecast(Predictor(SHAPE, PROFILE))
    recorder = Recorder(bench.engine, bench.inputs, bench.inputs._tokenizer)
    sampling = SamplingParams(**{"temperature": 0, "max_tokens": 4} | params)
    return recorder.run(lambda: list(prompt.encode()), sampling, num_requests=num_requests)


def scripts(*texts: str) -> dict[str, str]:
    return {f"explain-1-{index}": text for index, text in enumerate(texts)}


def test_the_instants_follow_each_other(new_bench) -> None:
    run = record(new_bench(scripts("abcd")))
    instants = [run.arrived_at_s, run.tokenized_at_s]
    for step in run.steps:
        instants += [
            step.scheduling_at_s,
            step.scheduled_at_s,
            step.started_at_s,
            step.finished_at_s,
            step.committed_at_s,
            step.delivered_at_s,
        ]
    assert instants == sorted(set(instants))
    assert run.finished_at_s == instants[-1]
    assert run.output.outputs[0].text == "abcd"
    assert run.output.outputs[0].finish_reason == FinishReason.LENGTH
    assert [step.shape.num_tokens for step in run.steps] == [5, 1, 1, 1]


def test_the_path_of_a_recorded_run_covers_its_wall_time_once(new_bench) -> None:
    run = record(new_bench(scripts("abcdefgh"), budget=3), max_tokens=8)
    path = request_path(run)
    assert sum(step.seconds for step in path.values()) == pytest.approx(run.wall_s)
    assert path["prefill"].count == 2
    assert path["decode"].count == 7
    assert min(step.seconds for step in path.values()) >= 0


def test_predictions_are_those_of_the_schedule_whatever_the_clock_says(new_bench) -> None:
    runs = []
    for stride_s in (1.0, 1e-3):
        bench = new_bench(scripts("abcd"))
        bench.engine.clock = StridingClock(stride_s)
        runs.append(record(bench))
    assert [s.prediction for s in runs[0].steps] == [s.prediction for s in runs[1].steps]
    assert runs[0].wall_s > runs[1].wall_s
    assert [s.prediction.total_s for s in runs[0].steps] == [
        Predictor(SHAPE, PROFILE).predict(s.shape).total_s for s in runs[0].steps
    ]


def test_requests_alike_run_together_and_share_nothing(new_bench) -> None:
    bench = new_bench(scripts("ab", "ab", "abcd"), caching=True)
    prompt = "a prompt longer than one block of KV"
    run = record(bench, num_requests=3, prompt=prompt)
    assert run.request_id == "explain-1-2"
    assert [len(step.request_ids) for step in run.steps] == [2, 3, 3, 2, 1]
    assert run.output.metrics.num_cached_tokens == 0
    assert run.output.outputs[0].text == "abcd"
    assert run.steps[0].num_blocks == 5
    assert not bench.engine.has_unfinished_requests


def test_a_request_that_cannot_be_served_is_refused_before_anything_runs(new_bench) -> None:
    bench = new_bench(scripts("ab"))
    with pytest.raises(RequestError, match="max_model_len"):
        record(bench, prompt="x" * 400)
    assert bench.executor.num_steps == 0


def test_the_engines_own_work_is_timed_part_by_part(new_bench) -> None:
    """On a clock of one second a reading: scheduling is read again after a look at the queue, the forecast
    between two readings, the executor's parts by itself.
    """
    bench = new_bench(scripts("ab"))
    execute = bench.executor.execute
    host_seconds = {"arrays": 0.25, "calls": 0.125}
    bench.executor.execute = lambda output: replace(execute(output), host_seconds=host_seconds)
    for step in record(bench, max_tokens=2).steps:
        own = step.own_seconds
        assert list(own) == ["schedule", "forecast", "arrays", "calls", "commit"]
        assert (own["forecast"], own["arrays"], own["calls"]) == (1.0, 0.25, 0.125)
        assert own["schedule"] == step.scheduled_at_s - step.scheduling_at_s > 0
        assert own["commit"] == step.committed_at_s - step.finished_at_s > 0
        assert sum(own.values()) + sum(step.op_seconds.values()) <= step.seconds


def test_an_executor_that_tells_nothing_of_its_own_work_leaves_it_unaccounted(new_bench) -> None:
    (step, _) = record(new_bench(scripts("ab")), max_tokens=2).steps
    assert (step.own_seconds["arrays"], step.own_seconds["calls"]) == (0.0, 0.0)
