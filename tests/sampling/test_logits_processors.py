"""Logits processors: worked by hand, one row at a time."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.sampling.logits_processors import (
    add_logit_bias,
    mask_tokens,
    penalize_output,
    penalize_repetition,
)


def row(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_masked_tokens_are_impossible_and_the_others_untouched():
    logits = row(1, 2, 3, 4)
    mask_tokens(logits, {1, 3})
    assert logits.tolist() == [1, -np.inf, 3, -np.inf]


def test_a_masked_id_beyond_the_vocabulary_is_ignored():
    logits = row(1, 2)
    mask_tokens(logits, {1, 2, 49_152})
    assert logits.tolist() == [1, -np.inf]


def test_a_mask_over_everything_is_not_applied():
    logits = row(1, 2)
    mask_tokens(logits, {0, 1, 5})
    assert logits.tolist() == [1, 2]


def test_bias_is_added_to_its_token_only():
    logits = row(1, 2, 3)
    add_logit_bias(logits, {2: -100.0, 0: 2.5})
    assert logits.tolist() == [3.5, 2, -97]


def test_repetition_divides_positive_and_multiplies_negative_logits_once_per_token():
    logits = row(2, -2, 0, 2, -np.inf)
    penalize_repetition(logits, [0, 1, 0, 2, 4, 1], 2.0)
    assert logits.tolist() == [1, -4, 0, 2, -np.inf]


@pytest.mark.parametrize("penalty", [5e-324, 1e-300, 1e300, 1.7e308])
def test_an_absurd_repetition_penalty_stays_finite(penalty):
    logits = np.array([3.4e38, -3.4e38, 0], dtype=np.float64)
    penalize_repetition(logits, [0, 1, 2], penalty)
    assert np.isfinite(logits).all()


def test_frequency_counts_and_presence_does_not():
    logits = row(1, 1, 1)
    penalize_output(logits, [0, 2, 2, 2], frequency=0.5, presence=0.25)
    assert logits.tolist() == [0.25, 1, -0.75]


def test_negative_penalties_favour_repetition():
    logits = row(0, 0)
    penalize_output(logits, [1, 1], frequency=-1.0, presence=-2.0)
    assert logits.tolist() == [0, 4]
