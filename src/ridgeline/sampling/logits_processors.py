"""Logits processors: each changes one row of logits in place, before temperature.

All take `logits` as float64[vocab_size] that the caller owns. Meanings and order are vLLM's: the
allowed tokens, the min_tokens mask, logit bias, repetition penalty, then frequency and presence penalties.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

# Beyond these a penalty has long had its full effect; inside them no float32 logit can overflow float64.
_MIN_PENALTY, _MAX_PENALTY = 1e-200, 1e200


def allow_tokens(logits: NDArray[np.float64], allowed: NDArray[np.uint32]) -> None:
    """Make every token impossible (−∞) whose bit, i % 32 of word i // 32 of `allowed`, is 0."""
    bits = np.unpackbits(allowed.view(np.uint8), count=len(logits), bitorder="little")
    logits[bits == 0] = -np.inf


def mask_tokens(logits: NDArray[np.float64], token_ids: Collection[int]) -> None:
    """Make `token_ids` impossible (−∞). Ids outside the vocabulary can't come anyway.

    A mask that would leave nothing to choose is not applied.
    """
    ids = [token_id for token_id in token_ids if token_id < len(logits)]
    before = logits[ids]
    logits[ids] = -np.inf
    if logits.max() == -np.inf:
        logits[ids] = before


def add_logit_bias(logits: NDArray[np.float64], logit_bias: Mapping[int, float]) -> None:
    """Add each token's bias to its logit. Ids are below vocab_size (checked where a request arrives)."""
    token_ids = np.fromiter(logit_bias.keys(), dtype=np.intp, count=len(logit_bias))
    logits[token_ids] += np.fromiter(logit_bias.values(), dtype=np.float64, count=len(logit_bias))


def penalize_repetition(logits: NDArray[np.float64], token_ids: Sequence[int], penalty: float) -> None:
    """Divide positive logits of `token_ids` (prompt and output) by `penalty`, multiply negative ones."""
    penalty = min(max(penalty, _MIN_PENALTY), _MAX_PENALTY)
    ids = np.asarray(token_ids, dtype=np.intp)
    # Repeated ids are harmless: each writes the same value, made from the untouched logit.
    before = logits[ids]
    logits[ids] = np.where(before > 0, before / penalty, before * penalty)


def penalize_output(
    logits: NDArray[np.float64], output_token_ids: Sequence[int], *, frequency: float, presence: float
) -> None:
    """Subtract, per token generated so far, `frequency` × its count and once `presence`."""
    ids, counts = np.unique(np.asarray(output_token_ids, dtype=np.intp), return_counts=True)
    logits[ids] -= frequency * counts + presence
