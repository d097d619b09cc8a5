"""Runs made by hand: steps whose instants and seconds are whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.explain.recorder import RunRecord, StepRecord
from ridgeline.outputs import CompletionOutput, RequestOutput
from ridgeline.perf.predict import Predictor, StepPrediction
from ridgeline.perf.step_shape import StepRow, StepShape

STEP_S = 20.0
"""1 s to schedule, 1 s in between, 10 s to execute, 3 s to commit, 2 s for text, 3 s until the next.

Of the 10 s, 9 s are ops (8 s without sampling), 1 s the forecast, arrays and calls.
"""


def step_record(
    at_s: float, rows: Sequence[StepRow], *, request_ids: Sequence[str] = ("r",), sample_s: float = 1.0
) -> StepRecord:
    shape = StepShape(list(rows))
    return StepRecord(
        scheduling_at_s=at_s,
        scheduled_at_s=at_s + 1,
        started_at_s=at_s + 2,
        finished_at_s=at_s + 12,
        committed_at_s=at_s + 15,
        delivered_at_s=at_s + 17,
        request_ids=request_ids,
        shape=shape,
        num_blocks=len(rows),
        op_seconds={"gate_up_proj": 5.0, "lm_head": 3.0, "sample": sample_s},
        host_seconds={"arrays": 0.25, "calls": 1.5 - sample_s},
        forecast_s=0.25,
        prediction=predicted(shape),
    )


def predicted(shape: StepShape) -> StepPrediction:
    return Predictor(SHAPE, PROFILE).predict(shape)


def run_record(steps: Sequence[StepRecord], *, num_prompt_tokens: int = 8) -> RunRecord:
    """Arrives at 100 s, is tokenised by 104 s; ends when its last step has delivered."""
    return RunRecord(
        request_id="r",
        num_requests=len(steps[0].shape.rows),
        num_prompt_tokens=num_prompt_tokens,
        arrived_at_s=100.0,
        tokenized_at_s=104.0,
        finished_at_s=[step for step in steps if "r" in step.request_ids][-1].delivered_at_s,
        steps=steps,
        output=RequestOutput("r", None, [0] * num_prompt_tokens, [CompletionOutput(0, "", [1, 2])], True),
    )
