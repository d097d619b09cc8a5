"""The size of the KV cache: asked for, by default, and when it can't be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.perf.kv_memory import KVShape
from ridgeline.perf.kv_sizing import KVCacheSettings, size_kv_cache

SHAPE = KVShape(num_layers=30, num_kv_heads=3, head_dim=64)
BLOCK = 737_280


def settings(**changes: int) -> KVCacheSettings:
    return KVCacheSettings(**({"block_size": 32, "max_num_seqs": 32, "max_model_len": 8192} | changes))


def test_the_default_holds_every_request_at_its_longest_where_memory_allows() -> None:
    cache = size_kv_cache(SHAPE, settings(), available_bytes=10**12)
    assert cache.num_blocks == 32 * 256
    assert cache.kv_cache_bytes == 32 * 256 * BLOCK
    assert cache.max_cached_tokens == 32 * 8192
    assert cache.max_model_len == 8192


def test_the_default_takes_a_quarter_of_the_memory_at_most() -> None:
    cache = size_kv_cache(SHAPE, settings(), available_bytes=4 * (10 * BLOCK + 5))
    assert cache.num_blocks == 10
    assert cache.max_model_len == 320


@pytest.mark.parametrize(
    ("wanted", "available", "remedy"),
    [(BLOCK - 1, 10**9, "737280"), (10**9, 10**9 - 1, "only 999999999 bytes are available")],
)
def test_too_little_and_too_much_are_refused(wanted: int, available: int, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy) as caught:
        size_kv_cache(SHAPE, settings(kv_cache_bytes=wanted), available_bytes=available)
    assert caught.value.field == "kv_cache_bytes"
    assert caught.value.value == wanted


@given(st.integers(BLOCK, 10**12), st.integers(1, 10_000))
def test_what_was_asked_is_used_up_to_a_block(kv_cache_bytes: int, max_model_len: int) -> None:
    asked = settings(kv_cache_bytes=kv_cache_bytes, max_model_len=max_model_len)
    cache = size_kv_cache(SHAPE, asked, available_bytes=10**12)
    assert 0 <= kv_cache_bytes - cache.kv_cache_bytes < BLOCK
    assert cache.max_model_len == min(max_model_len, cache.max_cached_tokens)
