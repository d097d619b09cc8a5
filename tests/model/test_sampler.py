"""The native sampler against its NumPy twin: the same tokens, the same bits of every logprob."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.core.request import Request
from ridgeline.errors import EngineError
from ridgeline.kernels.sampling_ops import RowSettings, Sampler, available_sampling_isas
from ridgeline.model.sampler import NativeSampler, ReferenceSampler
from ridgeline.sampling_params import SamplingParams

VOCAB_SIZES = (1, 2, 31, 63, 64, 65, 128, 200, 1023)
EOS = 0

# Ties, both zeros, the ends of float32 and −∞ are as common as ordinary values.
special = st.sampled_from([0.0, -0.0, 1.0, -1.0, 3.4e38, -3.4e38, 1e-45, float("-inf"), 80.0])
ordinary = st.floats(-30, 30, width=32)


@st.composite
def logits_rows(draw, vocab_size: int) -> np.ndarray:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.0, 1e-3, 1.0, 5.0, 30.0]))
    row = rng.normal(0, spread, vocab_size).astype(np.float32)
    if draw(st.booleans()):
        row = np.round(row)  # many ties
    for value in draw(st.lists(st.one_of(special, ordinary), max_size=8)):
        row[rng.integers(vocab_size)] = value
    if not np.isfinite(row.max()):
        row[rng.integers(vocab_size)] = 1.0
    return row


@st.composite
def params(draw, vocab_size: int) -> SamplingParams:
    def often(default, strategy):
        return draw(st.one_of(st.just(default), strategy))

    ids = st.integers(0, vocab_size - 1)
    return SamplingParams(
        max_tokens=None,
        temperature=often(0.0, st.one_of(st.floats(0.05, 3), st.sampled_from([5e-324, 1e-6, 1.0, 1e300]))),
        top_k=often(0, st.integers(-1, vocab_size + 2)),
        top_p=often(1.0, st.one_of(st.floats(1e-9, 1), st.sampled_from([5e-324, 1 - 2**-53, 0.9]))),
        min_p=often(0.0, st.one_of(st.floats(0, 1), st.sampled_from([1.0, 1e-300, 0.05]))),
        repetition_penalty=often(1.0, st.sampled_from([1.1, 0.5, 1e-300, 1e300])),
        presence_penalty=often(0.0, st.floats(-2, 2)),
        frequency_penalty=often(0.0, st.floats(-2, 2)),
        logit_bias=often({}, st.dictionaries(ids, st.floats(-100, 100), max_size=4)),
        min_tokens=often(0, st.integers(0, 6)),
        stop_token_ids=often((), st.lists(ids, max_size=3)),
        logprobs=often(None, st.integers(-1, vocab_size)),
    )


@st.composite
def requests(draw, vocab_size: int) -> Request:
    ids = st.integers(0, vocab_size - 1)
    request = Request(
        request_id=str(draw(st.integers())),
        prompt_token_ids=draw(st.lists(ids, min_size=1, max_size=10)),
        sampling_params=draw(params(vocab_size)),
        arrived_at_s=0.0,
        seed=draw(st.integers(0, 2**63 - 1)),
        max_num_tokens=100,
        choice_index=draw(st.integers(0, 127)),
        eos_token_ids=frozenset([EOS]),
    )
    request.output_token_ids += draw(st.lists(ids, max_size=5))
    return request


@st.composite
def batches(draw):
    vocab_size = draw(st.sampled_from(VOCAB_SIZES))
    count = draw(st.integers(1, 5))
    logits = np.stack([draw(logits_rows(vocab_size)) for _ in range(count)])
    rows = [draw(requests(vocab_size)) for _ in range(count)]
    masks = [None] * count
    if draw(st.booleans()):
        words = -(-vocab_size // 32)
        bits = st.integers(0, 2**32 - 1)
        masks = [
            np.array(draw(st.lists(bits, min_size=words, max_size=words)), np.uint32) for _ in range(count)
        ]
        if draw(st.booleans()):
            masks[0][:] = 0  # nothing is allowed
    return logits, rows, masks


def reference() -> ReferenceSampler:
    return ReferenceSampler(lambda: 0.0)


def outcome(sampler, logits, rows, masks):
    """What comes out, or the message of an error."""
    try:
        output = sampler.sample(logits, rows, masks)
    except EngineError as error:
        return str(error)
    return list(output.token_ids), list(output.logprobs)


@settings(max_examples=400, deadline=None)
@given(batches())
def test_native_equals_its_twin(batch):
    logits, rows, masks = batch
    native = NativeSampler(logits.shape[1], num_threads=1)
    assert outcome(native, logits, rows, masks) == outcome(reference(), logits, rows, masks)


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 4.0])
@pytest.mark.parametrize("isa", available_sampling_isas())
def test_every_instruction_set_and_thread_count_agrees_on_a_large_vocabulary(isa, spread):
    vocab_size = 49_152
    logits = np.random.default_rng(5).normal(0, spread, (12, vocab_size)).astype(np.float32)
    kinds = [
        {"temperature": 0},
        {"temperature": 0.8, "logprobs": 5},
        {"top_p": 0.9},
        {"temperature": 2.0, "top_p": 0.999},
        {"top_k": 50, "logprobs": 0},
        {"top_k": 5000, "top_p": 0.7},
        {"min_p": 0.02},
        {"temperature": 0, "repetition_penalty": 1.3, "logprobs": -1},
        {"temperature": 0.7, "frequency_penalty": 0.5, "top_p": 0.95},
        {"temperature": 0, "min_tokens": 9},
        {"temperature": 1e-5},
        {"temperature": 1.5, "top_k": 3000, "min_p": 0.01, "top_p": 0.5, "logprobs": 3},
    ]
    rows = [
        Request(
            request_id=str(seed),
            prompt_token_ids=[7, 8, 9, int(logits[seed].argmax())],
            sampling_params=SamplingParams(max_tokens=None, **kind),
            arrived_at_s=0.0,
            seed=seed,
            max_num_tokens=100,
            output_token_ids=[8, 8, 1],
            eos_token_ids=frozenset([int(logits[seed].argmax())]),
        )
        for seed, kind in enumerate(kinds)
    ]
    expected = outcome(reference(), logits, rows, ())
    for num_threads in (1, 3):
        settings_of = [row_settings(row) for row in rows]
        native = Sampler(vocab_size, num_threads=num_threads, isa=isa)
        assert native.sample(logits, settings_of, [3] * len(rows))[:2] == expected
        alone = [native.sample(logits[i : i + 1], settings_of[i : i + 1], [3]) for i in range(len(rows))]
        assert [token for tokens, _, _ in alone for token in tokens] == expected[0]
        assert [entry for _, entries, _ in alone for entry in entries] == expected[1]


def row_settings(request: Request) -> RowSettings:
    row = RowSettings(
        request.sampling_params,
        seed=request.seed,
        choice_index=request.choice_index,
        prompt_token_ids=request.prompt_token_ids,
        eos_token_ids=tuple(request.eos_token_ids),
    )
    if row.counts_tokens:
        row.count_output(request.output_token_ids)
    return row


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_penalties_follow_a_growing_output_and_a_changing_batch(data):
    vocab_size = 40
    native, twin = NativeSampler(vocab_size, num_threads=1), reference()
    rows = [data.draw(requests(vocab_size)) for _ in range(3)]
    for _ in range(4):
        present = data.draw(st.lists(st.sampled_from(rows), min_size=1, unique=True))
        logits = np.stack([data.draw(logits_rows(vocab_size)) for _ in present])
        assert outcome(native, logits, present, ()) == outcome(twin, logits, present, ())
        for row in present:
            row.output_token_ids.append(data.draw(st.integers(0, vocab_size - 1)))


@settings(max_examples=100, deadline=None)
@given(data=st.data(), vocab_size=st.sampled_from(VOCAB_SIZES))
def test_prompt_logprobs_equal_the_twins(data, vocab_size):
    logits = np.stack([data.draw(logits_rows(vocab_size)) for _ in range(3)])
    token_ids = [data.draw(st.integers(0, vocab_size - 1)) for _ in range(3)]
    count = data.draw(st.integers(-1, vocab_size))
    native = NativeSampler(vocab_size, num_threads=2).prompt_logprobs(logits, token_ids, count)
    assert native == reference().prompt_logprobs(logits, token_ids, count)


@pytest.mark.parametrize("seed", [0, 42, 2**63 - 1])
@pytest.mark.parametrize("choice_index", [0, 127])
@pytest.mark.parametrize("position", [0, 1, 8191])
@pytest.mark.parametrize("vocab_size", [3, 1000])
def test_a_draw_of_equals_is_numpys_philox(seed, choice_index, position, vocab_size):
    key = np.array([seed, choice_index], np.uint64)
    # NumPy advances its 256-bit counter before it makes a block, so start one earlier.
    before = [(position - 1) % 2**64, *([2**64 - 1] * 3 if position == 0 else [0] * 3)]
    generator = np.random.Philox(key=key, counter=np.array(before, np.uint64))
    bits = int(generator.random_raw(1)[0]) >> 11
    row = RowSettings(
        SamplingParams(), seed=seed, choice_index=choice_index, prompt_token_ids=[0], eos_token_ids=[]
    )
    token_ids, _, _ = Sampler(vocab_size).sample(np.ones((1, vocab_size), np.float32), [row], [position])
    assert token_ids == [bits * vocab_size >> 53]


def simple(**fields) -> Request:
    return Request(
        request_id="0",
        prompt_token_ids=[1],
        sampling_params=SamplingParams(max_tokens=None, **fields),
        arrived_at_s=0.0,
        seed=3,
        max_num_tokens=100,
        eos_token_ids=frozenset([EOS]),
    )


SAMPLERS = [reference(), NativeSampler(3, num_threads=1)]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=["reference", "native"])
@pytest.mark.parametrize("bad", [[0.0, np.nan, 1.0], [0.0, np.inf, 1.0], [-np.inf] * 3, [np.nan] * 3])
def test_logits_that_are_no_numbers_are_our_fault(sampler, bad):
    logits = np.array([bad], np.float32)
    for temperature in (0, 1.0):
        with pytest.raises(EngineError, match="finite maximum"):
            sampler.sample(logits, [simple(temperature=temperature)])
    with pytest.raises(EngineError, match="finite maximum"):
        sampler.prompt_logprobs(logits, [0], 1)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=["reference", "native"])
def test_only_what_a_mask_allows_comes_and_it_wins_over_min_tokens(sampler):
    logits = np.array([[9.0, 5.0, 7.0]], np.float32)
    for mask, expected in ((0b111, 0), (0b110, 2), (0b010, 1)):
        allowed = [np.array([mask], np.uint32)]
        assert sampler.sample(logits, [simple(temperature=0)], allowed).token_ids == [expected]
        assert sampler.sample(logits, [simple(temperature=1e-9)], allowed).token_ids == [expected]
    only_eos = [np.array([0b001], np.uint32)]
    assert sampler.sample(logits, [simple(temperature=0, min_tokens=5)], only_eos).token_ids == [EOS]
    with pytest.raises(EngineError, match="no token is allowed"):
        sampler.sample(logits, [simple()], [np.array([0], np.uint32)])


def test_what_does_not_fit_is_an_engine_error():
    native = Sampler(40)
    logits = np.zeros((1, 40), np.float32)
    row = row_settings(simple(temperature=0))
    biased = row_settings(simple(logit_bias={40: 1.0}))
    wrong = [
        (np.zeros((1, 41), np.float32), [row], [0], ()),
        (np.zeros((2, 40), np.float32), [row], [0], ()),
        (logits.astype(np.float64), [row], [0], ()),
        (logits, [row], [-1], ()),
        (logits, [row], [0, 0], ()),
        (logits, [row], [0], [np.zeros(1, np.uint32)]),
        (logits, [row], [0], [None, None]),
        (logits, [biased], [0], ()),
    ]
    for arguments in wrong:
        with pytest.raises(EngineError):
            native.sample(*arguments)
    for token_ids, count in (([40], 1), ([-1], 1), ([0, 0], 1), ([0], -2)):
        with pytest.raises(EngineError):
            native.prompt_logprobs(logits, token_ids, count)
    with pytest.raises(EngineError):
        Sampler(40, isa="abacus")
    assert native.sample(np.empty((0, 40), np.float32), [], [])[:2] == ([], [])
    native.close()
    native.close()
    with pytest.raises(EngineError, match="closed"):
        native.sample(logits, [row], [0])
