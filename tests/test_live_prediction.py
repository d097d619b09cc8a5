"""A calibrated machine: the engine built on the real model predicts each step, by the model's own ops."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.perf.priced_machine import PRICES, PROFILE

from ridgeline import LLM, SamplingParams
from ridgeline.bench.calibrate import default_shape, keep
from ridgeline.config.env import home_dir
from ridgeline.core.events import StepFinished
from ridgeline.engine.machine_profile import stored_profile
from ridgeline.hub.store import resolve_model
from ridgeline.perf.op_cost import OPS

pytestmark = pytest.mark.golden
PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


def steps_of(llm: LLM) -> list[StepFinished]:
    return [event for event in llm.parts.event_log.events() if isinstance(event, StepFinished)]


def test_steps_are_predicted_once_the_machine_is_calibrated(tmp_path, monkeypatch) -> None:
    model = str(resolve_model("smollm2-135m-instruct", home_dir()))
    monkeypatch.setenv("RIDGELINE_HOME", str(tmp_path))
    with LLM(model, num_threads=2, max_model_len=256) as llm:
        llm.generate(["Hello"], PARAMS, progress=False)
        assert llm.parts.hardware is None
        assert all(step.predicted_op_s is None for step in steps_of(llm))
    keep(tmp_path, replace(PROFILE, prices=replace(PRICES, model=default_shape())))
    with LLM(model, num_threads=2, max_model_len=256) as llm:
        outputs = llm.generate(["Hello", "What is the capital of France?"], PARAMS, progress=False)
        assert llm.parts.hardware == stored_profile(tmp_path, 2)
        steps = steps_of(llm)
        assert len(steps) >= 4
        for step in steps:
            assert set(step.predicted_op_s) == {*OPS, "step_overhead"}
            assert set(step.op_seconds) == set(step.bound_op_s) == set(OPS)
            num_tokens = sum(count for *_, count in step.composition)
            assert step.predicted_op_s["down_proj"] == pytest.approx(num_tokens * 1e-4, rel=0.01)
        assert all(output.finished for output in outputs)
    with LLM(model, num_threads=1, max_model_len=256) as llm:
        assert llm.parts.hardware is None  # another number of threads is another machine
