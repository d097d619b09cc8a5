"""InputBatch: one step's ragged batch as flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.step import ScheduledRequest, SchedulerOutput

Int32Array = NDArray[np.int32]

_NO_COPIES: Int32Array = np.zeros((0, 2), np.int32)


class InputBatch(NamedTuple):
    """T tokens of S requests; request s owns rows query_start_loc[s] … query_start_loc[s+1].

    `token_ids`, `positions` i32[T]; `query_start_loc` i32[S+1]; `seq_lens` i32[S], context lengths after
    this step; `block_tables` i32[S, B], entries past a request's context hold anything; `block_copies`
    i32[C, 2], (from, to) block ids copied before anything is computed; `logits_rows` i32[R], the rows whose
    logits are wanted.
    """

    token_ids: Int32Array
    positions: Int32Array
    query_start_loc: Int32Array
    seq_lens: Int32Array
    block_tables: Int32Array
    block_copies: Int32Array
    logits_rows: Int32Array


class LogitsPlan(NamedTuple):
    """How the R logits rows are shared out.

    `prompt_rows` holds (index of the scheduled request, first row, number of rows) of those that predict
    known prompt tokens. `sample_rows` are the rows to sample from and `sampling` the indices of their
    requests, in order.
    """

    prompt_rows: list[tuple[int, int, int]]
    sample_rows: list[int]
    sampling: list[int]


class BatchBuilder:
    """Flattens scheduler outputs; keeps the block tables' array, in which most steps change nothing."""

    def __init__(self) -> None:
        self._tables = np.zeros((1, 1), np.int32)
        self._known_tables: list[list[int]] = []

    def build(self, scheduler_output: SchedulerOutput) -> tuple[InputBatch, LogitsPlan]:
        """The batch of the scheduled requests, in their order; its block tables live until the next call."""
        scheduled = scheduler_output.scheduled
        token_ids: list[int] = []
        positions: list[int] = []
        starts, seq_lens = [0], []
        for item in scheduled:
            request, first = item.request, item.num_computed_tokens
            end = first + item.num_scheduled_tokens
            at_output = first - len(request.prompt_token_ids)
            if at_output >= 0 and end == first + 1:
                token_ids.append(request.output_token_ids[at_output])
                positions.append(first)
            else:
                token_ids += request.token_ids(first, end)
                positions += range(first, end)
            starts.append(len(token_ids))
            seq_lens.append(end)
        logits_rows, plan = _plan_logits(scheduled, starts)
        copies = scheduler_output.block_copies
        num_tokens, num_seqs = len(token_ids), len(scheduled)
        # Views of one array: making an array costs more than what such lists hold.
        joined = np.array(token_ids + positions + starts + seq_lens + logits_rows, np.int32)
        at_starts, at_lens = 2 * num_tokens, 2 * num_tokens + num_seqs + 1
        batch = InputBatch(
            token_ids=joined[:num_tokens],
            positions=joined[num_tokens:at_starts],
            query_start_loc=joined[at_starts:at_lens],
            seq_lens=joined[at_lens : at_lens + num_seqs],
            block_tables=self._block_tables(scheduled),
            block_copies=np.array(copies, np.int32).reshape(-1, 2) if copies else _NO_COPIES,
            logits_rows=joined[at_lens + num_seqs :],
        )
        return batch, plan

    def _block_tables(self, scheduled: Sequence[ScheduledRequest]) -> Int32Array:
        known = self._known_tables
        num_rows, width = len(scheduled), max([len(item.block_ids) for item in scheduled])
        if num_rows > len(self._tables) or width > self._tables.shape[1]:
            # Twice as wide as needed: a growing request then seldom makes all tables move.
            self._tables = np.zeros((max(num_rows, len(self._tables)), 2 * width), np.int32)
            known.clear()
        for row, item in enumerate(scheduled):
            block_ids = item.block_ids
            if row < len(known) and known[row] == block_ids:
                continue
            self._tables[row, : len(block_ids)] = block_ids
            known[row : row + 1] = [list(block_ids)]
        return self._tables[:num_rows]


def _plan_logits(scheduled: Sequence[ScheduledRequest], starts: list[int]) -> tuple[list[int], LogitsPlan]:
    rows: list[int] = []
    prompt_rows: list[tuple[int, int, int]] = []
    sample_rows: list[int] = []
    sampling: list[int] = []
    for index, item in enumerate(scheduled):
        request, first = item.request, item.num_computed_tokens
        end = first + item.num_scheduled_tokens
        if request.sampling_params.prompt_logprobs is not None:
            # The row of position p predicts p + 1; the last prompt token's row is the one to sample from.
            # What was known before a preemption is not wanted twice.
            num_known = max(request.num_prompt_logprobs - first, 0)
            count = min(end, request.num_prompt_tokens - 1) - first - num_known
            if count > 0:
                prompt_rows.append((index, len(rows), count))
                rows += range(starts[index] + num_known, starts[index] + num_known + count)
        if end == request.num_tokens:
            sampling.append(index)
            sample_rows.append(len(rows))
            rows.append(starts[index + 1] - 1)
    return rows, LogitsPlan(prompt_rows, sample_rows, sampling)
