"""What the keys of `bench engine` mean."""

from __future__ import annotations

import pytest

from ridgeline.bench.keys import DEFAULT_KEYS, Kind, Workload, parse_key, prompt_ids
from ridgeline.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("load_s", (Kind.LOAD, 1, 16, 1)),
        ("prefill_512_tok_s", (Kind.PREFILL, 1, 512, 1)),
        ("decode_b1_tok_s", (Kind.DECODE, 1, 1, 64)),
        ("decode_b1_depth4096_tok_s", (Kind.DECODE, 1, 4096, 64)),
        ("decode_b32_tok_s", (Kind.DECODE, 32, 128, 64)),
        ("decode_b3_depth10_tok_s", (Kind.DECODE, 3, 10, 64)),
        ("e2e_b32_128in_64out_out_tok_s", (Kind.END_TO_END, 32, 128, 64)),
    ],
)
def test_a_key_names_a_workload(key, expected):
    assert parse_key(key) == Workload(key, *expected)


def test_every_default_key_is_one():
    assert [parse_key(key).key for key in DEFAULT_KEYS] == list(DEFAULT_KEYS)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "load",
        "prefill_0_tok_s",
        "prefill_tok_s",
        "decode_b0_tok_s",
        "decode_b01_tok_s",
        "e2e_b1_tok_s",
        "x load_s",
    ],
)
def test_another_key_is_refused_with_those_that_are_known(key):
    with pytest.raises(ConfigError, match="decode_b1_depth4096_tok_s"):
        parse_key(key)


@pytest.mark.parametrize(
    ("key", "units"),
    [("load_s", 1), ("prefill_512_tok_s", 512), ("decode_b8_tok_s", 512), ("e2e_b2_5in_7out_out_tok_s", 14)],
)
def test_rates_count_prompt_tokens_of_a_prefill_and_output_tokens_elsewhere(key, units):
    assert parse_key(key).num_units == units


def test_prompts_are_those_of_the_other_engines():
    assert prompt_ids(0, 3, 50_000) == [1000, 8919, 16838]
    assert prompt_ids(1, 2, 50_000) == [25_729, 33_648]
    assert max(prompt_ids(3, 500, 100)) < 100
