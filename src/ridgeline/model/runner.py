"""ModelRunner: the Executor that computes; forward pass and sampler around one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.step import ModelRunnerOutput, ScheduledRequest, SchedulerOutput, TokenLogprobs
from ridgeline.grammar.masks import GrammarMasks
from ridgeline.model.batch import BatchBuilder, LogitsPlan
from ridgeline.model.forward import Forward
from ridgeline.model.sampler import Sampler


class ModelRunner:
    """Runs scheduler outputs on a `Forward` and a `Sampler`. `now` reads the clock, for their seconds.

    Masks of requests with a grammar are made while the forward pass runs.
    """

    def __init__(self, forward: Forward, sampler: Sampler, now: Callable[[], float]) -> None:
        self._forward = forward
        self._sampler = sampler
        self._now = now
        self._grammar_masks = GrammarMasks()
        self._batch_builder = BatchBuilder()

    def execute(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the scheduled tokens; sample for every request whose known tokens are all computed."""
        started_at_s = self._now()
        batch, plan = self._batch_builder.build(scheduler_output)
        scheduled = scheduler_output.scheduled
        sampling = [scheduled[index].request for index in plan.sampling]
        masks = self._grammar_masks.start(sampling)
        calling_at_s = self._now()
        logits, op_seconds = self._forward.run(batch)
        token_ids: list[int | None] = [None] * len(scheduled)
        logprobs: list[TokenLogprobs | None] = [None] * len(scheduled)
        prompt_logprobs: list[Sequence[TokenLogprobs]] = [()] * len(scheduled)
        op_seconds["sample"] = 0.0
        if plan.sampling:
            # With no prompt logprobs about, the rows to sample from are all the rows there are.
            rows = logits if not plan.prompt_rows else logits[plan.sample_rows]
            allowed = masks.result() if masks is not None else ()
            sampled = self._sampler.sample(rows, sampling, allowed)
            for index, token_id, entry in zip(
                plan.sampling, sampled.token_ids, sampled.logprobs, strict=True
            ):
                token_ids[index], logprobs[index] = token_id, entry
            op_seconds["sample"] = sampled.seconds
        if plan.prompt_rows:
            ranking_at_s = self._now()
            self._rank_prompts(logits, scheduled, plan, prompt_logprobs)
            op_seconds["sample"] += self._now() - ranking_at_s
        calls_s = self._now() - calling_at_s - sum(op_seconds.values())
        host_seconds = {"arrays": calling_at_s - started_at_s, "calls": calls_s}
        output = ModelRunnerOutput(
            token_ids, logprobs, prompt_logprobs, op_seconds, host_seconds=host_seconds
        )
        return output if masks is None else self._along_grammars(output, scheduled, plan.sampling)

    def close(self) -> None:
        """Give back threads and memory."""
        self._forward.close()
        self._sampler.close()
        self._grammar_masks.close()

    def _along_grammars(
        self, output: ModelRunnerOutput, scheduled: Sequence[ScheduledRequest], sampling: Sequence[int]
    ) -> ModelRunnerOutput:
        """`output` with what the grammars dictate after the sampled tokens."""
        token_ids, forced, failures = list(output.sampled_token_ids), {}, {}
        for index in sampling:
            request, token_id = scheduled[index].request, token_ids[index]
            assert token_id is not None
            error = self._grammar_masks.error(request)
            if error is not None:
                failures[index], token_ids[index] = error, None
            elif request.grammar is not None:
                forced[index] = self._grammar_masks.jump(request, token_id)
        return replace(output, sampled_token_ids=token_ids, forced_token_ids=forced, failures=failures)

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
