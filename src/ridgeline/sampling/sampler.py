"""The sampler: logits of one step → one token per row, with log-probabilities where asked for.

Per row, in vLLM's order: logprobs of the raw logits; allowed tokens, min_tokens mask, logit bias,
penalties; then the best token, or temperature → min_p → top_k → top_p → one draw. Every row is worked
alone with its own numbers, so its result does not depend on the rest of the batch. This is the NumPy twin
of `kernels.sampling_ops`: same tokens, same bits of every logprob.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.step import TokenLogprobs
from ridgeline.errors import EngineError, NonFiniteLogitsError
from ridgeline.sampling import logits_processors as processors
from ridgeline.sampling.exponential import exp_nonpositive, halving_sum
from ridgeline.sampling.rng import uniform
from ridgeline.sampling.selection import FloatArray, IntArray, kept_tokens, largest, pick
from ridgeline.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What the sampler must know of the request behind one row of logits.

    The draw is keyed by (`seed`, `choice_index`, number of output tokens). `eos_token_ids` are the
    model's own, also under ignore_eos: like vLLM, min_tokens holds them back either way, while
    ignore_eos alone masks nothing (the token is generated, and does not end the request). Bit i % 32 of
    word i // 32 of `allowed_tokens` says whether token i may come; None allows all.
    """

    params: SamplingParams
    seed: int
    choice_index: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    eos_token_ids: Collection[int]
    allowed_tokens: NDArray[np.uint32] | None = None


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The token chosen for one row; `logprobs` is None unless the request asked for them."""

    token_id: int
    logprobs: TokenLogprobs | None


def sample(logits: NDArray[np.float32], rows: Sequence[SamplingRow]) -> list[SampledToken]:
    """One token for each row of `logits` float32[num_rows, vocab_size], which is left unchanged.

    Raises EngineError when a row has no finite maximum (NaN or infinite logits), or nothing is allowed.
    """
    assert len(logits) == len(rows)
    return [_sample_row(row_logits, row) for row_logits, row in zip(logits, rows, strict=True)]


def prompt_logprobs(
    logits: NDArray[np.float32], token_ids: Sequence[int], num_logprobs: int
) -> list[TokenLogprobs]:
    """Logprobs of a known text: `token_ids[i]` stands at the position that `logits[i]` predicts.

    `logits` is float32[num_positions, vocab_size]; `num_logprobs` as in `SamplingParams`. Raises
    EngineError when a row has no finite maximum.
    """
    assert len(logits) == len(token_ids)
    return [
        _token_logprobs(row_logits, token_id, num_logprobs)
        for row_logits, token_id in zip(logits, token_ids, strict=True)
    ]


def _sample_row(logits: NDArray[np.float32], row: SamplingRow) -> SampledToken:
    _check_finite(logits)
    params = row.params
    token_id = _choose(_adjusted(logits, row), row)
    if params.logprobs is None:
        return SampledToken(token_id, None)
    return SampledToken(token_id, _token_logprobs(logits, token_id, params.logprobs))


def _adjusted(logits: NDArray[np.float32], row: SamplingRow) -> FloatArray:
    """`logits` after the processors that this row needs: a float64 copy, or itself if none."""
    params, output = row.params, row.output_token_ids
    holds_back = len(output) < params.min_tokens
    repeats = params.repetition_penalty != 1
    counts = bool(output) and (params.frequency_penalty != 0 or params.presence_penalty != 0)
    masks = row.allowed_tokens is not None
    if not (masks or holds_back or params.logit_bias or repeats or counts):
        return logits
    adjusted = logits.astype(np.float64)
    if row.allowed_tokens is not None:
        processors.allow_tokens(adjusted, row.allowed_tokens)
        if math.isinf(adjusted.max()):
            raise EngineError("no token is allowed")
    if holds_back:
        processors.mask_tokens(adjusted, {*row.eos_token_ids, *params.stop_token_ids})
    if params.logit_bias:
        processors.add_logit_bias(adjusted, params.logit_bias)
    if repeats:
        known = [*row.prompt_token_ids, *output]
        processors.penalize_repetition(adjusted, known, params.repetition_penalty)
    if counts:
        processors.penalize_output(
            adjusted, output, frequency=params.frequency_penalty, presence=params.presence_penalty
        )
    return adjusted


def _choose(logits: FloatArray, row: SamplingRow) -> int:
    params = row.params
    if params.is_greedy:
        return int(logits.argmax())
    ids, masses = kept_tokens(
        logits,
        temperature=params.temperature,
        min_p=params.min_p,
        top_k=params.top_k,
        top_p=params.top_p,
    )
    position = pick(masses, uniform(row.seed, row.choice_index, len(row.output_token_ids)))
    return position if ids is None else int(ids[position])


def _token_logprobs(logits: NDArray[np.float32], token_id: int, num_logprobs: int) -> TokenLogprobs:
    """Entry 0 is `token_id`, then the `num_logprobs` best (−1: all) by (logprob desc, id asc)."""
    best = _check_finite(logits)
    exponentials = exp_nonpositive(np.subtract(logits, best, dtype=np.float64))
    log_total = best + math.log(halving_sum(exponentials))
    own = logits[token_id]
    rank = 1 + np.count_nonzero(logits > own) + np.count_nonzero(logits[:token_id] == own)
    top_ids = _ranked_ids(logits, len(logits) if num_logprobs == -1 else num_logprobs)
    top_logprobs = logits[top_ids].astype(np.float64) - log_total
    return TokenLogprobs(
        token_ids=[token_id, *top_ids.tolist()],
        logprobs=[float(own) - log_total, *top_logprobs.tolist()],
        ranks=[int(rank), *range(1, len(top_ids) + 1)],
    )


def _ranked_ids(logits: NDArray[np.float32], count: int) -> IntArray:
    """Ids of the `count` largest logits, the largest first, equal ones by id."""
    if count == 0:
        return np.empty(0, dtype=np.intp)
    ids = largest(logits, count)
    # One unsigned sort of (value, id) pairs is 20 times faster than a stable argsort of floats. The
    # bits of a float32 grow with a positive value and shrink with a negative one; −0.0 + 0.0 is 0.0.
    bits = (logits[ids] + np.float32(0)).view(np.uint32)
    falling = np.where(bits >> 31, bits, ~bits & np.uint32(0x7FFFFFFF))
    pairs = np.sort(falling.astype(np.uint64) << np.uint64(32) | ids.astype(np.uint64))
    return (pairs & np.uint64(0xFFFFFFFF)).astype(np.intp)


def _check_finite(logits: NDArray[np.float32]) -> float:
    """The largest logit. A NaN anywhere, +∞, or −∞ alone shows up in it."""
    best = float(logits.max())
    if not math.isfinite(best):
        raise NonFiniteLogitsError(f"the model gave logits without a finite maximum ({best})")
    return best
