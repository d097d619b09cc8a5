"""The sampler as the engine calls it: distributions, seeds, batch independence, logprobs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import EngineError
from ridgeline.sampling.sampler import SampledToken, SamplingRow, prompt_logprobs, sample
from ridgeline.sampling_params import SamplingParams

EOS = 2


def make_row(*, seed=0, choice_index=0, prompt=(), output=(), eos=(EOS,), **params) -> SamplingRow:
    settings = SamplingParams(**{"max_tokens": None, **params})
    return SamplingRow(settings, seed, choice_index, list(prompt), list(output), frozenset(eos))


def sample_one(logits, row: SamplingRow) -> SampledToken:
    return sample(np.array([logits], dtype=np.float32), [row])[0]


def token(logits, **kwargs) -> int:
    return sample_one(logits, make_row(**kwargs)).token_id


def random_logits(num_rows: int, vocab_size: int = 5000, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (num_rows, vocab_size)).astype(np.float32)


def expected_probabilities(logits, *, temperature=1.0, min_p=0.0, top_k=0, top_p=1.0) -> np.ndarray:
    """Worked the slow way: everything sorted, masked and renormalised one rule after the other."""
    probs = np.exp((np.array(logits, np.float64) - max(logits)) / temperature)
    probs /= probs.sum()
    probs[probs < min_p * probs.max()] = 0
    order = sorted(range(len(probs)), key=lambda i: (-logits[i], i))
    if top_k > 0:
        probs[order[top_k:]] = 0
    probs /= probs.sum()
    mass = 0.0
    for i in order:
        if mass >= top_p:
            probs[i] = 0
        mass += probs[i]
    return probs / probs.sum()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_k": -1},
        {"min_p": 0.2},
        {"top_p": 0.8},
        {"temperature": 1.5, "top_k": 5, "top_p": 0.7, "min_p": 0.05},
    ],
)
def test_frequencies_follow_the_distribution(params):
    logits = [0.3, 2.0, -1.0, 1.2, 0.9, -3.0, 1.7]
    num_draws = 6000
    tokens = [token(logits, seed=seed, **params) for seed in range(num_draws)]
    expected = expected_probabilities(logits, **params) * num_draws
    counts = np.bincount(tokens, minlength=len(logits))
    assert (counts[expected == 0] == 0).all()
    possible = expected > 0
    chi_square = ((counts[possible] - expected[possible]) ** 2 / expected[possible]).sum()
    # 6 degrees of freedom or fewer: 22.5 is exceeded once in a thousand; the seeds are fixed.
    assert chi_square < 22.5


def test_output_positions_of_one_request_are_independent_draws():
    logits = [0.0, math.log(3)]
    tokens = [token(logits, seed=5, output=[0] * position) for position in range(2000)]
    assert abs(sum(tokens) - 1500) < 4 * math.sqrt(2000 * 0.25 * 0.75)


def test_a_draw_is_keyed_by_seed_choice_and_position_alone():
    logits = random_logits(1)[0]
    again = [token(logits, seed=9, choice_index=1, output=[7, 7]) for _ in range(3)]
    assert again == [token(logits, seed=9, choice_index=1, prompt=[1, 2, 3], output=[8, 9])] * 3
    for key in ("seed", "choice_index"):
        assert len({token(logits, **{key: value}) for value in range(20)}) > 10
    assert len({token(logits, output=[0] * n) for n in range(20)}) > 10


def test_the_extreme_seeds_work():
    for seed in (0, 2**63 - 1):
        assert 0 <= token([0.0, 1.0, 2.0], seed=seed) < 3


# C08: no neighbour, and no place in the batch, changes a row's token or logprobs by a bit.
def test_batched_equals_alone():
    logits = random_logits(32, vocab_size=4999)
    kinds = [
        {"temperature": 0.8, "logprobs": 3},
        {"temperature": 0, "repetition_penalty": 1.3, "logprobs": 0},
        {"top_k": 40, "top_p": 0.9},
        {"top_p": 0.95, "frequency_penalty": 0.5, "logprobs": -1},
        {"min_p": 0.1, "logit_bias": {5: 3.0}},
        {"min_tokens": 5, "logprobs": 2},
        {"temperature": 1e-5},
    ]
    rows = [
        make_row(seed=i, prompt=range(i), output=range(i % 4), **kinds[i % len(kinds)]) for i in range(32)
    ]
    together = sample(logits, rows)
    assert together == [sample(logits[i : i + 1], rows[i : i + 1])[0] for i in range(32)]
    assert together[::-1] == sample(logits[::-1], rows[::-1])


def test_logits_are_left_unchanged():
    logits = random_logits(1, 100)
    before = logits.copy()
    sample(
        logits,
        [
            make_row(
                prompt=[1],
                output=[4, 4],
                min_tokens=9,
                repetition_penalty=2,
                presence_penalty=1,
                frequency_penalty=1,
                logit_bias={3: 4},
                top_k=5,
                top_p=0.5,
                min_p=0.1,
                logprobs=-1,
            )
        ],
    )
    assert np.array_equal(logits, before)


def test_no_rows_no_tokens():
    assert sample(np.empty((0, 10), np.float32), []) == []


def test_greedy_takes_the_lowest_id_of_equals():
    assert token([1, 5, 0, 5, 5], temperature=0) == 1
    assert token([1, 5, 0, 5, 5], temperature=0, logit_bias={0: 0.5}) == 1


# C07: near-zero temperatures are greedy, whatever else is set; nothing overflows (warnings are errors).
@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-300, 1e-12, 1e-6, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"top_k": 1},
        {"top_k": 0},
        {"top_k": -1},
        {"top_p": 1e-9},
        {"top_p": 5e-324},
        {"min_p": 1.0},
        {"logit_bias": {0: 100.0, 1: -100.0, 7: 100.0}},
        {"top_k": 50, "top_p": 0.9, "min_p": 0.01},
    ],
)
def test_tiny_temperatures_are_greedy(temperature, more):
    for seed, logits in enumerate(random_logits(5)):
        best_two = np.sort(logits)[-2:]
        assert best_two[1] - best_two[0] > 20 * temperature
        greedy = token(logits, temperature=0, **{k: v for k, v in more.items() if k == "logit_bias"})
        assert token(logits, seed=seed, temperature=temperature, **more) == greedy


def test_equal_best_logits_share_the_draw_at_a_tiny_temperature():
    tokens = [token([3, 7, 7, 1], seed=seed, temperature=5e-324) for seed in range(400)]
    assert 140 < tokens.count(1) < 260
    assert tokens.count(1) + tokens.count(2) == 400


@pytest.mark.parametrize("params", [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9}])
def test_limits_that_leave_one_token_are_greedy(params):
    for seed, logits in enumerate(random_logits(5)):
        assert token(logits, seed=seed, temperature=5.0, **params) == int(logits.argmax())


def test_a_huge_temperature_is_uniform():
    tokens = [token([30, -30, 0, 5], seed=seed, temperature=1.7e308) for seed in range(2000)]
    counts = np.bincount(tokens, minlength=4)
    assert ((counts - 500) ** 2 / 500).sum() < 16.3


def test_huge_logits_are_no_trouble():
    assert token([3e38, -3e38, 0], temperature=1e-300, repetition_penalty=1e-300, prompt=[0, 1, 2]) == 0


# C09: penalties and biases.
def test_repetition_penalty_counts_prompt_and_output():
    logits = [0.0, 4.0, 3.0, 2.9]
    assert token(logits, temperature=0, prompt=[1], repetition_penalty=1.5) == 2
    assert token(logits, temperature=0, prompt=[1], output=[2], repetition_penalty=1.5) == 3
    assert token(logits, temperature=0, prompt=[1], output=[2], repetition_penalty=1.0) == 1


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_presence_and_frequency_count_output_only(name):
    logits = [0.0, 4.0, 3.0]
    assert token(logits, temperature=0, prompt=[1, 1, 1], **{name: 2.0}) == 1
    assert token(logits, temperature=0, output=[1], **{name: 2.0}) == 2


def test_frequency_grows_with_the_count_and_presence_does_not():
    logits = [0.0, 4.0, 1.5]
    assert token(logits, temperature=0, output=[1, 1], presence_penalty=1.0) == 1
    assert token(logits, temperature=0, output=[1, 1, 1], frequency_penalty=1.0) == 2


def test_bias_comes_before_the_repetition_penalty():
    # (1 + 1) / 2 = 1 loses to 1.2; 1 / 2 + 1 = 1.5 would win.
    assert token([1.0, 1.2], temperature=0, prompt=[0], logit_bias={0: 1}, repetition_penalty=2.0) == 1


def test_frequencies_with_a_bias():
    logits = [0.0, 0.0, 0.0]
    tokens = [token(logits, seed=seed, logit_bias={1: math.log(2)}) for seed in range(4000)]
    counts = np.bincount(tokens, minlength=3)
    expected = np.array([1000, 2000, 1000])
    assert ((counts - expected) ** 2 / expected).sum() < 13.9


def test_rows_with_different_biases_do_not_touch_each_other():
    logits = np.zeros((3, 10), np.float32)
    rows = [make_row(temperature=0, logit_bias=bias) for bias in ({4: 100}, {}, {9: 100})]
    assert [sampled.token_id for sampled in sample(logits, rows)] == [4, 0, 9]


def test_a_bias_of_100_is_obeyed_and_one_of_minus_100_avoided():
    for seed, logits in enumerate(random_logits(20)):
        assert token(logits, seed=seed, logit_bias={77: 100.0}) == 77
        assert token(logits, seed=seed, logit_bias={int(logits.argmax()): -100.0}) != int(logits.argmax())


# min_tokens and ignore_eos.
def test_min_tokens_holds_back_eos_and_stop_tokens_until_enough_are_generated():
    logits = [1.0, 2.0, 9.0, 8.0]
    settings = {"temperature": 0, "min_tokens": 2, "stop_token_ids": [3]}
    assert token(logits, output=[], **settings) == 1
    assert token(logits, output=[1], **settings) == 1
    assert token(logits, output=[1, 1], **settings) == EOS


def test_no_bias_frees_a_token_that_min_tokens_holds_back():
    assert token([0.0, 0.0, 9.0], temperature=0, min_tokens=1, logit_bias={EOS: 100}) == 0


def test_min_tokens_holds_back_every_eos_of_the_model():
    assert token([0.0, 5.0, 9.0], temperature=0, min_tokens=1, eos=(1, 2)) == 0


def test_ignore_eos_masks_nothing_by_itself_but_min_tokens_still_does():
    logits = [1.0, 2.0, 9.0]
    assert token(logits, temperature=0, ignore_eos=True) == EOS
    assert token(logits, temperature=0, ignore_eos=True, min_tokens=1) == 1


def test_stop_tokens_over_the_whole_vocabulary_do_not_leave_the_sampler_without_a_token():
    logits = [1.0, 2.0, 9.0]
    assert token(logits, temperature=0, min_tokens=5, stop_token_ids=[0, 1, 2, 3]) == 2
    assert token(logits, min_tokens=5, stop_token_ids=[0, 1, 2, 99]) in {0, 1, 2}


# Logprobs.
def naive_logprobs(logits) -> list[float]:
    values = [float(x) for x in logits]
    best = max(values)
    log_total = best + math.log(math.fsum(math.exp(x - best) for x in values))
    return [x - log_total for x in values]


float32_rows = st.lists(
    st.one_of(st.sampled_from([-0.0, 0.0, -1.0, 2.0]), st.floats(-50, 50, width=32)), min_size=2, max_size=30
)


@settings(max_examples=200)
@given(logits=float32_rows, num_logprobs=st.integers(-1, 30), temperature=st.sampled_from([0, 0.7]))
def test_logprobs_equal_a_full_sort(logits, num_logprobs, temperature):
    num_logprobs = min(num_logprobs, len(logits))
    sampled = sample_one(logits, make_row(temperature=temperature, logprobs=num_logprobs))
    logprobs = sampled.logprobs
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    top = order if num_logprobs == -1 else order[:num_logprobs]
    assert logprobs.token_ids == [sampled.token_id, *top]
    assert logprobs.ranks == [order.index(sampled.token_id) + 1, *range(1, len(top) + 1)]
    expected = naive_logprobs(logits)
    assert logprobs.logprobs == pytest.approx([expected[i] for i in logprobs.token_ids], abs=1e-12)
    assert all(type(value) is float for value in logprobs.logprobs)
    assert all(type(value) is int for value in (*logprobs.token_ids, *logprobs.ranks, sampled.token_id))


def test_logprobs_zero_is_the_chosen_token_alone_and_none_is_none():
    assert sample_one([1, 2], make_row(temperature=0)).logprobs is None
    logprobs = sample_one([1, 2], make_row(temperature=0, logprobs=0)).logprobs
    assert (logprobs.token_ids, logprobs.ranks) == ([1], [1])


def test_the_whole_vocabulary_sums_to_one():
    logprobs = sample_one(random_logits(1)[0], make_row(logprobs=-1)).logprobs
    assert len(logprobs.token_ids) == 5001
    assert sorted(logprobs.token_ids[1:]) == list(range(5000))
    assert math.fsum(math.exp(x) for x in logprobs.logprobs[1:]) == pytest.approx(1, abs=1e-12)


def test_logprobs_are_those_of_the_model_before_temperature_bias_and_penalties():
    logits = [0.0, 1.0, 2.0]
    sampled = sample_one(
        logits, make_row(temperature=0.1, logit_bias={0: 100}, presence_penalty=2, output=[2], logprobs=1)
    )
    assert sampled.token_id == 0
    assert sampled.logprobs.token_ids == [0, 2]
    assert sampled.logprobs.ranks == [3, 1]
    expected = naive_logprobs(logits)
    assert sampled.logprobs.logprobs == pytest.approx([expected[0], expected[2]], abs=1e-12)


def test_a_logprob_is_never_above_zero():
    logprobs = sample_one([3e38, 0, -3e38], make_row(logprobs=-1)).logprobs
    assert logprobs.logprobs[:2] == [0.0, 0.0]
    assert max(logprobs.logprobs) == 0.0


def test_prompt_logprobs_follow_the_given_tokens():
    logits = random_logits(4, vocab_size=50)
    entries = prompt_logprobs(logits, [3, 49, 0, 7], 2)
    for row_logits, token_id, entry in zip(logits, [3, 49, 0, 7], entries, strict=True):
        order = sorted(range(50), key=lambda i: (-row_logits[i], i))
        assert entry.token_ids == [token_id, *order[:2]]
        assert entry.ranks == [order.index(token_id) + 1, 1, 2]
        expected = naive_logprobs(row_logits)
        assert entry.logprobs == pytest.approx([expected[i] for i in entry.token_ids], abs=1e-12)


def test_prompt_logprobs_of_nothing():
    assert prompt_logprobs(np.empty((0, 5), np.float32), [], 3) == []


def test_prompt_and_output_logprobs_agree_to_the_bit():
    logits = random_logits(1)
    sampled = sample(logits, [make_row(logprobs=5)])[0]
    assert prompt_logprobs(logits, [sampled.token_id], 5) == [sampled.logprobs]


@pytest.mark.parametrize("bad", [[0.0, np.nan, 1.0], [0.0, np.inf, 1.0], [-np.inf] * 3])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_logits_that_are_no_numbers_are_our_fault(bad, temperature):
    with pytest.raises(EngineError):
        token(bad, temperature=temperature)
    with pytest.raises(EngineError):
        prompt_logprobs(np.array([bad], np.float32), [0], 1)
