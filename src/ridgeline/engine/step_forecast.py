"""What a step is expected to take, worked out from its schedule before it runs."""

from __future__ import annotations

from ridgeline.core.step import ScheduledRequest, SchedulerOutput
from ridgeline.perf.predict import Predictor, StepPrediction
from ridgeline.perf.step_shape import StepRow, StepShape


class StepForecast:
    """Turns scheduler outputs into step shapes and asks a `Predictor`."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def __call__(self, scheduler_output: SchedulerOutput) -> StepPrediction:
        """The prediction for one step; reads no clock."""
        return self._predictor.predict(step_shape_of(scheduler_output))


def step_shape_of(scheduler_output: SchedulerOutput) -> StepShape:
    """The composition of a step as perf has it."""
    return StepShape([_row(item) for item in scheduler_output.scheduled])


def _row(item: ScheduledRequest) -> StepRow:
    request, num_computed, num_scheduled, _ = item
    end = num_computed + num_scheduled
    num_logits_rows = int(end == request.num_tokens)
    if request.sampling_params.prompt_logprobs is not None:
        first = max(num_computed, request.num_prompt_logprobs)
        num_logits_rows += max(min(end, request.num_prompt_tokens - 1) - first, 0)
    return StepRow(num_computed, num_scheduled, num_logits_rows)
