"""InputBatch: one step's ragged batch as flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.step import ScheduledRequest, SchedulerOutput

Int32Array = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class InputBatch:
    """T tokens of S requests; request s owns rows query_start_loc[s] … query_start_loc[s+1].

    `token_ids`, `positions` i32[T]; `query_start_loc` i32[S+1]; `seq_lens` i32[S], context lengths after
    this step; `block_tables` i32[S, B], rows padded with 0; `block_copies` i32[C, 2], (from, to) block
    ids copied before anything is computed; `logits_rows` i32[R], the rows whose logits are wanted.
    """

    token_ids: Int32Array
    positions: Int32Array
    query_start_loc: Int32Array
    seq_lens: Int32Array
    block_tables: Int32Array
    block_copies: Int32Array
    logits_rows: Int32Array


@dataclass(frozen=True, slots=True)
class LogitsPlan:
    """How the R logits rows are shared out, parallel to the scheduled requests.

    `prompt_rows[s]` first of the rows that predict known prompt tokens, and how many; `sample_row[s]` the
    row to sample from, or None while the request has tokens left to compute.
    """

    prompt_rows: list[tuple[int, int]]
    sample_row: list[int | None]
    num_rows: int


def build_input_batch(scheduler_output: SchedulerOutput) -> tuple[InputBatch, LogitsPlan]:
    """Flatten the scheduled requests, in their order."""
    scheduled = scheduler_output.scheduled
    token_ids: list[int] = []
    for item in scheduled:
        token_ids += item.request.token_ids(item.num_computed_tokens, item.end)
    starts = [0, *accumulate(item.num_scheduled_tokens for item in scheduled)]
    logits_rows, plan = _plan_logits(scheduled, starts)
    batch = InputBatch(
        token_ids=np.asarray(token_ids, np.int32),
        positions=np.concatenate(
            [np.arange(i.num_computed_tokens, i.end, dtype=np.int32) for i in scheduled]
        ),
        query_start_loc=np.asarray(starts, np.int32),
        seq_lens=np.asarray([item.end for item in scheduled], np.int32),
        block_tables=_block_tables(scheduled),
        block_copies=np.asarray(scheduler_output.block_copies, np.int32).reshape(-1, 2),
        logits_rows=np.asarray(logits_rows, np.int32),
    )
    return batch, plan


def _plan_logits(scheduled: Sequence[ScheduledRequest], starts: list[int]) -> tuple[list[int], LogitsPlan]:
    rows: list[int] = []
    prompt_rows: list[tuple[int, int]] = []
    sample_row: list[int | None] = []
    for item, start in zip(scheduled, starts, strict=False):
        first, request = len(rows), item.request
        if request.sampling_params.prompt_logprobs is not None:
            # The row of position p predicts p + 1; the last prompt token's row is the one to sample from.
            # What was known before a preemption is not wanted twice.
            num_known = max(request.num_prompt_logprobs - item.num_computed_tokens, 0)
            num_rows = min(item.end, request.num_prompt_tokens - 1) - item.num_computed_tokens
            rows += range(start + num_known, start + num_rows)
        prompt_rows.append((first, len(rows) - first))
        sample_row.append(len(rows) if item.samples else None)
        if item.samples:
            rows.append(start + item.num_scheduled_tokens - 1)
    return rows, LogitsPlan(prompt_rows, sample_row, len(rows))


def _block_tables(scheduled: Sequence[ScheduledRequest]) -> Int32Array:
    tables = np.zeros((len(scheduled), max(len(item.block_ids) for item in scheduled)), np.int32)
    for row, item in zip(tables, scheduled, strict=True):
        row[: len(item.block_ids)] = item.block_ids
    return tables
