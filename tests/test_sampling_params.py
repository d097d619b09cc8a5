"""SamplingParams: every field's good and bad values; a bad one is named with its value."""

from __future__ import annotations

import dataclasses
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import RequestError
from ridgeline.sampling_params import MAX_SEED, SamplingParams
from ridgeline.structured_outputs import StructuredOutputs

HUGE = 10**400  # an int that no float can hold
NOT_A_NUMBER = [True, False, None, "1", "", b"1", [1], {}, math.nan, math.inf, -math.inf, 1j, HUGE, -HUGE]
NOT_A_COUNT = [True, False, "1", "", b"1", 1.0, 1.5, [1], {}, math.nan, math.inf]
NOT_A_LIST = [5, 1.5, True, b"abc", {"a": 1}, object]

BAD = {
    "n": [*NOT_A_COUNT, None, 0, -1, 129, HUGE],
    "temperature": [*NOT_A_NUMBER, -1e-9, -1, -5e-324],
    "top_p": [*NOT_A_NUMBER, 0, 0.0, -0.0, -0.1, 1.0000001, 2],
    "top_k": [*NOT_A_COUNT, None, -2, -100],
    "min_p": [*NOT_A_NUMBER, -1e-9, 1.0000001],
    "presence_penalty": [*NOT_A_NUMBER, -2.0000001, 2.0000001],
    "frequency_penalty": [*NOT_A_NUMBER, -2.0000001, 2.0000001],
    "repetition_penalty": [*NOT_A_NUMBER, 0, 0.0, -1],
    "seed": [*NOT_A_COUNT, -1.0, -2, 2**63, 2**64, HUGE],
    "max_tokens": [*NOT_A_COUNT, 0, -1],
    "min_tokens": [*NOT_A_COUNT, None, -1, 17, HUGE],
    "logprobs": [*NOT_A_COUNT, -2],
    "prompt_logprobs": [*NOT_A_COUNT, -2],
    "stop": [*NOT_A_LIST, "", [""], ["a", ""], [None], [1], [b"a"], [["a"]], ["a"] * 17],
    "stop_token_ids": [*NOT_A_LIST, "5", ["5"], [1.0], [None], [True], [-1], [[1]], [3, -3]],
    "include_stop_str_in_output": [None, 0, 1, "true", []],
    "ignore_eos": [None, 0, 1, "true", []],
    "skip_special_tokens": [None, 0, 1, "true", []],
    "structured_outputs": [5, "x", True, {}, {"regex": "a"}, []],
    "logit_bias": [
        *[5, "x", [5], [(5, 1.0)]],
        *[{"abc": 1}, {"-1": 1}, {-1: 1}, {"": 1}, {" 5": 1}, {"٣": 1}, {"5.0": 1}, {5.0: 1}, {None: 1}],
        *[{True: 1}, {(5,): 1}, {"9" * 5000: 1}],
        *[{5: 1e9}, {5: 100.0001}, {5: -100.0001}, {5: math.nan}, {5: math.inf}, {5: HUGE}],
        *[{5: None}, {5: "1"}, {5: True}, {1: 1, 2: 101}],
    ],
}

GOOD = {
    "n": [1, 128],
    "temperature": [0, 0.0, -0.0, 5e-324, 1e-12, 0.7, 2, 1.7e308],
    "top_p": [5e-324, 1e-9, 0.5, 1, 1.0],
    "top_k": [-1, 0, 1, 10**9],
    "min_p": [0, 0.5, 1, 1.0],
    "presence_penalty": [-2, 0, 2.0],
    "frequency_penalty": [-2, 0, 2.0],
    "repetition_penalty": [5e-324, 0.5, 1, 2, 1e300],
    "seed": [None, 0, 1, MAX_SEED],
    "max_tokens": [None, 1, 16, 10**9],
    "min_tokens": [0, 16],
    "logprobs": [None, -1, 0, 5, 49_152],
    "prompt_logprobs": [None, -1, 0, 5, 49_152],
    "include_stop_str_in_output": [True, False],
    "ignore_eos": [True, False],
    "skip_special_tokens": [True, False],
    "structured_outputs": [None, StructuredOutputs(regex="a")],
}


def cases(table):
    return [
        pytest.param(name, value, id=f"{name}-{i}")
        for name, values in table.items()
        for i, value in enumerate(values)
    ]


def test_every_field_is_tried():
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    assert set(BAD) == fields
    assert set(GOOD) == fields - {"stop", "stop_token_ids", "logit_bias"}  # these are normalised, see below


@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.field == name
    assert caught.value.remedy
    assert str(caught.value).startswith(f"{name}=")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "value"), cases(GOOD))
def test_a_good_value_is_kept(name, value):
    assert getattr(SamplingParams(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("temperature", -1, -1),
        ("stop", ["a", 7], 7),
        ("stop_token_ids", [1, -5], -5),
        ("logit_bias", {4: 101}, 101),
    ],
)
def test_the_error_shows_the_value_at_fault(name, value, shown):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.value == shown


def test_a_bad_bias_names_its_token():
    with pytest.raises(RequestError, match="bias of token 4711"):
        SamplingParams(logit_bias={4711: 1000})


def test_a_very_long_value_gives_a_short_message():
    with pytest.raises(RequestError) as caught:
        SamplingParams(stop=["x" * 100_000, ""])
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [10**5000, -(10**5000)], ids=["positive", "negative"])
@pytest.mark.parametrize("name", ["n", "temperature", "seed", "top_p"])
def test_a_number_too_long_to_print_is_refused_like_any_other(name, value):
    """Python refuses to turn an int of more than 4,300 digits into text."""
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, ()),
        ((), ()),
        ([], ()),
        ("abc", ("abc",)),
        (["abc"], ("abc",)),
        (("a", "b"), ("a", "b")),
        (["a"] * 16, ("a",) * 16),
        ([" ", "\n", "🦙"], (" ", "\n", "🦙")),
    ],
)
def test_stop_strings_become_a_tuple(value, kept):
    assert SamplingParams(stop=value).stop == kept


@pytest.mark.parametrize(
    ("value", "kept"),
    [(None, ()), ([], ()), ([0, 2], (0, 2)), ((7,), (7,)), (range(3), (0, 1, 2)), ({5}, (5,))],
)
def test_stop_token_ids_become_a_tuple(value, kept):
    assert SamplingParams(stop_token_ids=value).stop_token_ids == kept


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, {}),
        ({}, {}),
        ({5: 1}, {5: 1.0}),
        ({"5": -100, "0": 100}, {5: -100.0, 0: 100.0}),
        ({"49152": 0}, {49_152: 0.0}),  # the vocabulary's size is checked where it is known
        ({token_id: 0.5 for token_id in range(5000)}, {token_id: 0.5 for token_id in range(5000)}),
    ],
)
def test_logit_bias_becomes_ids_and_floats(value, kept):
    bias = SamplingParams(logit_bias=value).logit_bias
    assert bias == kept
    assert all(type(key) is int and type(number) is float for key, number in bias.items())


def test_the_callers_lists_and_dicts_are_copied():
    stop, ids, bias = ["a"], [1], {5: 1.0}
    params = SamplingParams(stop=stop, stop_token_ids=ids, logit_bias=bias)
    stop.append("b")
    ids.append(2)
    bias[6] = 7.0
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("a",), (1,), {5: 1.0})


def test_seed_minus_one_is_no_seed():
    assert SamplingParams(seed=-1).seed is None


def test_min_tokens_may_not_exceed_max_tokens():
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5
    assert SamplingParams(min_tokens=500, max_tokens=None).min_tokens == 500
    with pytest.raises(RequestError, match=r"≤ max_tokens \(5\)") as caught:
        SamplingParams(min_tokens=6, max_tokens=5)
    assert caught.value.field == "min_tokens"


def test_defaults_are_those_of_vllm():
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (params.max_tokens, params.min_tokens, params.seed) == (16, 0, None)
    assert (params.logprobs, params.prompt_logprobs) == (None, None)
    assert not params.ignore_eos
    assert params.skip_special_tokens


@pytest.mark.parametrize(
    ("temperature", "is_greedy"), [(0, True), (0.0, True), (-0.0, True), (5e-324, False)]
)
def test_only_zero_is_greedy(temperature, is_greedy):
    assert SamplingParams(temperature=temperature).is_greedy is is_greedy


def test_it_is_frozen_and_by_keyword_only():
    params = SamplingParams()
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 2.0
    with pytest.raises(TypeError):
        SamplingParams(1)


def test_it_survives_replace_and_pickle():
    params = SamplingParams(stop="x", stop_token_ids=[4], logit_bias={"5": 1}, seed=3)
    assert dataclasses.replace(params, temperature=0.5).logit_bias == {5: 1.0}
    assert pickle.loads(pickle.dumps(params)) == params


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.none()), max_size=3),
    st.dictionaries(
        st.one_of(st.integers(), st.text(max_size=3)), st.one_of(st.floats(), st.none()), max_size=3
    ),
)


@given(name=st.sampled_from(sorted(BAD)), value=anything)
def test_any_value_is_either_taken_or_refused_by_name(name, value):
    refused_field = None
    try:
        params = SamplingParams(**{name: value})
        assert SamplingParams(**{name: getattr(params, name)}) == params
    except RequestError as error:
        refused_field = error.field
    assert refused_field in {None, name}
