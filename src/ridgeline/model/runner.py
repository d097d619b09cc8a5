"""ModelRunner: the Executor that computes; forward pass and sampler around one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.step import ModelRunnerOutput, ScheduledRequest, SchedulerOutput, TokenLogprobs
from ridgeline.model.batch import BatchBuilder, LogitsPlan
from ridgeline.model.forward import Forward
from ridgeline.model.sampler import Sampler


class ModelRunner:
    """Runs scheduler outputs on a `Forward` and a `Sampler`. `now` reads the clock, for their seconds."""

    def __init__(self, forward: Forward, sampler: Sampler, now: Callable[[], float]) -> None:
        self._forward = forward
        self._sampler = sampler
        self._now = now
        self._batch_builder = BatchBuilder()

    def execute(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the scheduled tokens; sample for every request whose known tokens are all computed."""
        batch, plan = self._batch_builder.build(scheduler_output)
        logits, op_seconds = self._forward.run(batch)
        scheduled = scheduler_output.scheduled
        token_ids: list[int | None] = [None] * len(scheduled)
        logprobs: list[TokenLogprobs | None] = [None] * len(scheduled)
        prompt_logprobs: list[Sequence[TokenLogprobs]] = [()] * len(scheduled)
        op_seconds["sample"] = 0.0
        if plan.sampling:
            # With no prompt logprobs about, the rows to sample from are all the rows there are.
            rows = logits if not plan.prompt_rows else logits[plan.sample_rows]
            sampled = self._sampler.sample(rows, [scheduled[index].request for index in plan.sampling])
            for index, token_id, entry in zip(
                plan.sampling, sampled.token_ids, sampled.logprobs, strict=True
            ):
                token_ids[index], logprobs[index] = token_id, entry
            op_seconds["sample"] = sampled.seconds
        if plan.prompt_rows:
            started_at_s = self._now()
            self._rank_prompts(logits, scheduled, plan, prompt_logprobs)
            op_seconds["sample"] += self._now() - started_at_s
        return ModelRunnerOutput(token_ids, logprobs, prompt_logprobs, op_seconds)

    def close(self) -> None:
        """Give back threads and memory."""
        self._forward.close()
        self._sampler.close()

    def _rank_prompts(
        self,
        logits: NDArray[np.float32],
        scheduled: Sequence[ScheduledRequest],
        plan: LogitsPlan,
        prompt_logprobs: list[Sequence[TokenLogprobs]],
    ) -> None:
        for index, first, count in plan.prompt_rows:
            item = scheduled[index]
            num_logprobs = item.request.sampling_params.prompt_logprobs
            assert num_logprobs is not None
            start = max(item.num_computed_tokens, item.request.num_prompt_logprobs) + 1
            known = item.request.prompt_token_ids[start : start + count]
            prompt_logprobs[index] = self._sampler.prompt_logprobs(
                logits[first : first + count], known, num_logprobs
            )
