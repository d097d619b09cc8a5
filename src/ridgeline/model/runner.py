"""ModelRunner: the Executor that computes; forward pass and sampler around one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.step import ModelRunnerOutput, ScheduledRequest, SchedulerOutput, TokenLogprobs
from ridgeline.model.batch import InputBatch, LogitsPlan, build_input_batch
from ridgeline.model.forward import Forward
from ridgeline.sampling.sampler import SampledToken, SamplingRow, prompt_logprobs, sample

_WARM_UP_TOKENS = 8


class ModelRunner:
    """Runs scheduler outputs on a `Forward`. `now` reads the clock, for the sampler's seconds."""

    def __init__(self, forward: Forward, now: Callable[[], float]) -> None:
        self._forward = forward
        self._now = now

    def execute(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the scheduled tokens; sample for every request whose known tokens are all computed."""
        batch, plan = build_input_batch(scheduler_output)
        logits, op_seconds = self._forward.run(batch)
        started_at_s = self._now()
        scheduled = scheduler_output.scheduled
        sampled = _sample(logits, scheduled, plan)
        prompt_entries = _prompt_entries(logits, scheduled, plan)
        return ModelRunnerOutput(
            [token.token_id if token is not None else None for token in sampled],
            [token.logprobs if token is not None else None for token in sampled],
            prompt_entries,
            {**op_seconds, "sample": self._now() - started_at_s},
        )

    def warm_up(self) -> None:
        """Compute a few tokens in block 0, which their owner overwrites later."""
        positions = np.arange(_WARM_UP_TOKENS, dtype=np.int32)
        self._forward.run(
            InputBatch(
                token_ids=np.zeros(_WARM_UP_TOKENS, np.int32),
                positions=positions,
                query_start_loc=np.asarray([0, _WARM_UP_TOKENS], np.int32),
                seq_lens=np.asarray([_WARM_UP_TOKENS], np.int32),
                block_tables=np.zeros((1, 1), np.int32),
                block_copies=np.zeros((0, 2), np.int32),
                logits_rows=positions[-1:],
            )
        )

    def close(self) -> None:
        """Give back threads and memory."""
        self._forward.close()


def _sample(
    logits: NDArray[np.float32], scheduled: Sequence[ScheduledRequest], plan: LogitsPlan
) -> list[SampledToken | None]:
    wanted = [(index, row) for index, row in enumerate(plan.sample_row) if row is not None]
    sampled: list[SampledToken | None] = [None] * len(scheduled)
    if wanted:
        # With no prompt logprobs about, the rows to sample from are all the rows there are.
        rows = logits if len(wanted) == plan.num_rows else logits[[row for _, row in wanted]]
        tokens = sample(rows, [_sampling_row(scheduled[index]) for index, _ in wanted])
        for (index, _), token in zip(wanted, tokens, strict=True):
            sampled[index] = token
    return sampled


def _sampling_row(item: ScheduledRequest) -> SamplingRow:
    request = item.request
    return SamplingRow(
        params=request.sampling_params,
        seed=request.seed,
        choice_index=request.choice_index,
        prompt_token_ids=request.prompt_token_ids,
        output_token_ids=request.output_token_ids,
        eos_token_ids=request.eos_token_ids,
    )


def _prompt_entries(
    logits: NDArray[np.float32], scheduled: Sequence[ScheduledRequest], plan: LogitsPlan
) -> list[Sequence[TokenLogprobs]]:
    entries: list[Sequence[TokenLogprobs]] = []
    for item, (first, count) in zip(scheduled, plan.prompt_rows, strict=True):
        num_logprobs = item.request.sampling_params.prompt_logprobs
        if count == 0 or num_logprobs is None:
            entries.append(())
            continue
        start = max(item.num_computed_tokens, item.request.num_prompt_logprobs) + 1
        token_ids = item.request.prompt_token_ids[start : start + count]
        entries.append(prompt_logprobs(logits[first : first + count], token_ids, num_logprobs))
    return entries
