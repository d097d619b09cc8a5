"""Selection against a naive oracle that sorts the whole row in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.sampling.selection import (
    MASS_OF_BEST,
    kept_tokens,
    largest,
    nucleus,
    pick,
    relative_weights,
    whole_masses,
)

# Few distinct values make ties common; many make the order matter.
logit = st.one_of(st.integers(-3, 3).map(float), st.floats(-30, 30, width=32))
rows = st.lists(logit, min_size=1, max_size=40).map(lambda values: np.array(values, dtype=np.float32))


def ranking(values: np.ndarray) -> list[int]:
    return sorted(range(len(values)), key=lambda position: (-values[position], position))


def probabilities(logits: np.ndarray, temperature: float) -> list[float]:
    best = max(float(x) for x in logits)
    weights = [math.exp((float(x) - best) / temperature) for x in logits]
    return [weight / math.fsum(weights) for weight in weights]


def kept_ids(logits: np.ndarray, **limits: float) -> list[int]:
    settings = {"temperature": 1.0, "min_p": 0.0, "top_k": 0, "top_p": 1.0} | limits
    ids, masses = kept_tokens(logits, **settings)
    assert len(masses) == (len(logits) if ids is None else len(ids))
    return list(range(len(logits))) if ids is None else ids.tolist()


@given(values=rows, count=st.integers(1, 50))
def test_largest_keeps_exactly_count_with_ties_to_the_lower_position(values, count):
    assert largest(values, count).tolist() == sorted(ranking(values)[:count])


@given(logits=rows, top_k=st.integers(1, 50), temperature=st.floats(0.05, 5))
def test_top_k(logits, top_k, temperature):
    assert kept_ids(logits, top_k=top_k, temperature=temperature) == sorted(ranking(logits)[:top_k])


@pytest.mark.parametrize("top_k", [0, -1, 4, 5])
def test_top_k_off(top_k):
    assert kept_ids(np.array([0, 3, 1, 2], np.float32), top_k=top_k) == [0, 1, 2, 3]


@given(logits=rows, min_p=st.floats(0.001, 1), temperature=st.floats(0.05, 5))
def test_min_p_is_relative_to_the_best_token(logits, min_p, temperature):
    probs = probabilities(logits, temperature)
    kept = kept_ids(logits, min_p=min_p, temperature=temperature)
    limit = min_p * max(probs)
    assert set(kept) >= {i for i, p in enumerate(probs) if p > limit * (1 + 1e-9)}
    assert set(kept) <= {i for i, p in enumerate(probs) if p >= limit * (1 - 1e-9)}


def test_min_p_of_one_keeps_the_best_and_its_equals():
    assert kept_ids(np.array([2, 5, 5, 4.999], np.float32), min_p=1.0) == [1, 2]


@given(logits=rows, top_p=st.floats(1e-9, 1, exclude_max=True), temperature=st.floats(0.05, 5))
def test_top_p_keeps_the_smallest_set_with_that_mass(logits, top_p, temperature):
    probs = probabilities(logits, temperature)
    kept = kept_ids(logits, top_p=top_p, temperature=temperature)
    order = ranking(logits)
    assert kept == sorted(order[: len(kept)])
    assert math.fsum(probs[i] for i in kept) >= top_p - 1e-9
    assert len(kept) == 1 or math.fsum(probs[i] for i in order[: len(kept) - 1]) < top_p + 1e-9


@given(
    logits=rows,
    top_k=st.integers(0, 10),
    min_p=st.floats(0, 0.5),
    top_p=st.floats(0.1, 1),
)
def test_the_three_limits_together(logits, top_k, min_p, top_p):
    """min_p and top_k leave a prefix of the ranking; top_p counts the mass of that prefix."""
    probs = probabilities(logits, 1.0)
    order = ranking(logits)
    allowed = set(kept_ids(logits, min_p=min_p)) & set(kept_ids(logits, top_k=top_k))
    prefix = [i for i in order if i in allowed]
    total = math.fsum(probs[i] for i in prefix)
    kept = kept_ids(logits, top_k=top_k, min_p=min_p, top_p=top_p)
    assert kept == sorted(prefix[: len(kept)])
    assert math.fsum(probs[i] for i in kept) >= (top_p - 1e-9) * total
    assert len(kept) == 1 or math.fsum(probs[i] for i in prefix[: len(kept) - 1]) < (top_p + 1e-9) * total


@pytest.mark.parametrize("top_p", [5e-324, 1e-9, 0.5])
def test_top_p_keeps_at_least_one(top_p):
    assert kept_ids(np.array([1, 9, 2], np.float32), top_p=top_p) == [1]


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 4.0])
def test_a_nucleus_of_any_size_in_a_large_vocabulary(spread):
    """From one token to all of them: the partitions grow past every size without a seam."""
    logits = np.random.default_rng(3).normal(0, spread, 20_000).astype(np.float32)
    masses = whole_masses(relative_weights(logits, 1.0))
    order = np.lexsort((np.arange(len(logits)), -logits))
    mass = np.cumsum(masses[order]) / masses.sum()
    for top_p in (0.001, 0.01, 0.1, 0.3, 0.6, 0.9, 0.999, 1 - 1e-16):
        kept = nucleus(logits, masses, top_p)
        assert np.array_equal(kept, np.sort(order[: len(kept)]))
        assert mass[len(kept) - 1] >= top_p - 1e-12
        assert len(kept) == 1 or mass[len(kept) - 2] < top_p + 1e-12


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-12, 1e-4, 1, 1e4, 1.7e308])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_weights_are_probabilities_at_any_temperature(temperature, scale):
    logits = np.array([1, -2, 1, 0.5, -np.inf], np.float32) * np.float32(scale)
    weights = relative_weights(logits, temperature)
    assert ((weights >= 0) & (weights <= 1)).all()
    assert weights[0] == weights[2] == 1
    assert weights[4] == 0


def test_masses_are_whole_shares_of_the_best_and_sum_without_rounding():
    masses = whole_masses(np.array([1.0, 0.5, 2.0**-43, 2.0**-45, 0.0]))
    assert masses.tolist() == [MASS_OF_BEST, MASS_OF_BEST // 2, 1, 0, 0]
    assert int(np.full(2**20 - 1, MASS_OF_BEST).sum()) == (2**20 - 1) * MASS_OF_BEST


@given(
    masses=st.lists(st.sampled_from([0, 1, 2**30, 2**43]), min_size=1, max_size=20).filter(any),
    bits=st.integers(0, 2**53 - 1),
)
def test_pick_inverts_the_cumulative_masses_and_never_takes_a_token_of_none(masses, bits):
    position = pick(np.array(masses), bits / 2**53)
    target = bits * sum(masses) >> 53
    assert masses[position] > 0
    assert sum(masses[:position]) <= target < sum(masses[: position + 1])


@pytest.mark.parametrize(
    ("uniform", "position"),
    [(0.0, 1), (0.24999, 1), (0.25, 3), (0.74999, 3), (0.75, 4), (1 - 2**-53, 4)],
)
def test_pick_by_hand(uniform, position):
    assert pick(np.array([0, 1, 0, 2, 1, 0]) * 2**43, uniform) == position
