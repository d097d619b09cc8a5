from pathlib import Path

import pytest

from ridgeline.errors import ModelFileError
from ridgeline.tokenizer.gguf_tokenizer import build_tokenizer


def refusal(metadata):
    with pytest.raises(ModelFileError) as caught:
        build_tokenizer(metadata, path=Path("tiny.gguf"))
    assert caught.value.path == Path("tiny.gguf")
    assert caught.value.remedy
    return caught.value.problem


@pytest.mark.parametrize("key", ["model", "tokens", "merges"])
def test_missing_keys_of_a_byte_level_vocabulary(make_byte_level_metadata, key):
    assert refusal(make_byte_level_metadata(**{key: None})) == f"tokenizer.ggml.{key} is missing"


@pytest.mark.parametrize("key", ["tokens", "scores", "token_type"])
def test_missing_keys_of_a_sentencepiece_vocabulary(make_sentencepiece_metadata, key):
    assert refusal(make_sentencepiece_metadata(**{key: None})) == f"tokenizer.ggml.{key} is missing"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": 7}, "tokenizer.ggml.model is int, not str"),
        ({"pre": 1.0}, "tokenizer.ggml.pre is float, not str"),
        ({"tokens": "abc"}, "tokenizer.ggml.tokens is str, not an array"),
        ({"tokens": []}, "tokenizer.ggml.tokens is empty"),
        ({"tokens": ["a", 1]}, "tokenizer.ggml.tokens holds int, not str"),
        ({"tokens": ["\ud800"]}, "tokenizer.ggml.tokens holds text that is not valid UTF-8"),
        ({"token_type": [1, 2]}, "tokenizer.ggml.token_type has 2 entries for 264 tokens"),
        ({"token_type": [1.0] * 264}, "tokenizer.ggml.token_type holds float, not int"),
        ({"token_type": [9] * 264}, "tokenizer.ggml.token_type holds 9, which is no token type"),
        ({"merges": 5}, "tokenizer.ggml.merges is int, not an array"),
        ({"bos_token_id": 264}, "tokenizer.ggml.bos_token_id is 264, outside the 264 tokens"),
        ({"eos_token_id": -1}, "tokenizer.ggml.eos_token_id is -1, outside the 264 tokens"),
        ({"eot_token_id": 4294967295}, "tokenizer.ggml.eot_token_id is 4294967295, outside the 264 tokens"),
        ({"eom_token_id": "2"}, "tokenizer.ggml.eom_token_id is str, not int"),
        ({"bos_token_id": True}, "tokenizer.ggml.bos_token_id is bool, not int"),
        ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token is int, not bool"),
        (
            {"add_bos_token": True, "bos_token_id": None},
            "tokenizer.ggml.add_bos_token is true but bos_token_id is missing",
        ),
        (
            {"add_eos_token": True, "eos_token_id": None},
            "tokenizer.ggml.add_eos_token is true but eos_token_id is missing",
        ),
    ],
)
def test_broken_keys_are_named(make_byte_level_metadata, changes, problem):
    assert refusal(make_byte_level_metadata(**changes)) == problem


@pytest.mark.parametrize("merge", ["t", "t x h", "q z", "", " t", "zz a"])
def test_merges_that_make_no_token_are_named(make_byte_level_metadata, merge):
    problem = refusal(make_byte_level_metadata(merges=["t h", merge]))
    assert problem.startswith(f"tokenizer.ggml.merges entry 1 ({merge!r})")


def test_scores_and_byte_tokens_are_checked(make_sentencepiece_metadata):
    problem = refusal(make_sentencepiece_metadata(scores=[0.0]))
    assert problem == "tokenizer.ggml.scores has 1 entries for 267 tokens"
    tokens = make_sentencepiece_metadata()["tokenizer.ggml.tokens"]
    tokens[3] = "<0xZZ>"
    problem = refusal(make_sentencepiece_metadata(tokens=tokens))
    assert problem == "tokenizer.ggml.tokens holds '<0xZZ>' as a byte, which is written <0xNN>"


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", ""])
def test_unknown_tokenizer_models_are_refused_with_the_known_ones(make_byte_level_metadata, model):
    with pytest.raises(ModelFileError, match="gpt2, llama") as caught:
        build_tokenizer(make_byte_level_metadata(model=model), path=Path("tiny.gguf"))
    assert repr(model) in caught.value.problem


def test_unknown_pre_tokenizers_are_refused_with_the_known_ones(make_byte_level_metadata):
    with pytest.raises(ModelFileError, match=r"default, gpt-2, .*smollm.*llama-bpe.*qwen2") as caught:
        build_tokenizer(make_byte_level_metadata(pre="klingon"), path=Path("tiny.gguf"))
    assert "'klingon'" in caught.value.problem


def test_no_pre_tokenizer_means_the_default(make_byte_level, make_byte_level_metadata):
    assert make_byte_level(pre=None).encode("12") == make_byte_level(pre="default").encode("12") == [262]
