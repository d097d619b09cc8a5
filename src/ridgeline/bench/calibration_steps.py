"""The steps that calibration runs: enough of every kind that other steps lie between them."""

from __future__ import annotations

from ridgeline.perf.step_shape import StepRow, StepShape

MAX_CONTEXT = 3072
_SHORT_CONTEXT = 24
_PREFILL_ROW = 64


def decode_step(num_seqs: int, context: int) -> StepShape:
    """One token each of `num_seqs` requests that hold `context` tokens."""
    return StepShape((StepRow(context, 1, 1),) * num_seqs)


def prefill_step(num_tokens: int, context: int = 0) -> StepShape:
    """The next `num_tokens` of one prompt, not its last."""
    return StepShape((StepRow(context, num_tokens, 0),))


def wide_step(num_tokens: int) -> StepShape:
    """So many tokens of prompts of 64, whose attention is cheap; one row of logits each."""
    return StepShape((StepRow(0, _PREFILL_ROW, 1),) * (num_tokens // _PREFILL_ROW))


LONG_STEPS = (
    *(decode_step(num_seqs, _SHORT_CONTEXT) for num_seqs in (*range(1, 17), 24, 32, 48, 64)),
    *(wide_step(num_tokens) for num_tokens in (128, 192, 256, 384, 512)),
    *(decode_step(1, context) for context in (100, 300, 520, 1000, MAX_CONTEXT)),
    *(decode_step(8, context) for context in (100, 400, 1400)),
    decode_step(32, 300),
    *(prefill_step(num_tokens) for num_tokens in (8, 32, 128, 320)),
    prefill_step(64, 1000),
    prefill_step(16, MAX_CONTEXT),
)
SHORT_STEPS = (
    *(decode_step(num_seqs, _SHORT_CONTEXT) for num_seqs in (*range(1, 17), 32)),
    *(wide_step(num_tokens) for num_tokens in (64, 192)),
    *(decode_step(1, context) for context in (300, 1000)),
    decode_step(8, 400),
    prefill_step(64, 400),
)
