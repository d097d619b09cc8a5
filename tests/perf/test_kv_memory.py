"""The memory formula: known answers by hand, and equal to what is allocated, to the byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline import LLM
from ridgeline.errors import ConfigError
from ridgeline.formats.gguf import open_gguf
from ridgeline.model.kv_cache import kv_shape, new_native_kv_cache, new_reference_kv_cache
from ridgeline.model.weights import load_weights
from ridgeline.perf.kv_memory import KVShape

SMOLLM2 = KVShape(num_layers=30, num_kv_heads=3, head_dim=64)
WINDOWED = KVShape(num_layers=36, num_kv_heads=8, head_dim=64, window=128, num_window_layers=18)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (SMOLLM2, 23_040),
        (KVShape(num_layers=32, num_kv_heads=8, head_dim=128), 131_072),
        (KVShape(num_layers=32, num_kv_heads=32, head_dim=128), 524_288),
        (KVShape(num_layers=18, num_kv_heads=1, head_dim=256), 18_432),
        (KVShape(num_layers=30, num_kv_heads=3, head_dim=64, itemsize=4), 46_080),
        (WINDOWED, 73_728),
    ],
    ids=["smollm2", "grouped", "multi-head", "multi-query", "float32", "windowed"],
)
def test_bytes_per_token_are_known_ones(shape: KVShape, expected: int) -> None:
    assert shape.bytes_per_token == expected
    assert f"= {expected:,} B" in shape.formula


def test_the_formula_shows_every_factor() -> None:
    assert SMOLLM2.formula == "2 (K, V) × 30 layers × 3 KV heads × 64 × 2 B = 23,040 B"
    assert SMOLLM2.block_bytes(32) == 737_280
    assert SMOLLM2.block_formula(32) == "32 tokens × 23,040 B = 737,280 B"
    assert SMOLLM2.request(33, 32).formula == (
        "33 tokens × 23,040 B = 760,320 B; 2 blocks of 32 = 1,474,560 B, slack 31 tokens"
    )
    assert "18 layers of them only for the last 128 tokens" in WINDOWED.formula


@pytest.mark.parametrize(("num_tokens", "num_blocks", "slack"), [(1, 1, 31), (32, 1, 0), (33, 2, 31)])
def test_a_request_holds_whole_blocks_and_its_slack_is_told_apart(
    num_tokens: int, num_blocks: int, slack: int
) -> None:
    request = SMOLLM2.request(num_tokens, 32)
    assert (request.num_blocks, request.slack_tokens) == (num_blocks, slack)
    assert request.token_bytes == num_tokens * 23_040
    assert request.allocated_bytes == request.token_bytes + slack * 23_040


def test_windowed_layers_keep_their_window_only() -> None:
    request = WINDOWED.request(4096, 32)
    assert request.token_bytes == request.allocated_bytes == 155_713_536 == 18 * 2048 * (4096 + 128)
    assert "18 layers × 4,096 tokens + 18 layers × 128 tokens" in request.formula
    # One token more, and the window's 128 tokens touch five blocks of 32 in each windowed layer.
    later = WINDOWED.request(4097, 32)
    assert later.num_window_blocks == 5
    assert later.allocated_bytes == 18 * 2048 * 32 * (129 + 5)
    assert "129 and 5 a layer" in later.formula


@given(
    st.integers(1, 5000), st.integers(1, 128), st.integers(1, 700), st.integers(0, 6),
)  # fmt: skip
def test_whole_blocks_cost_at_most_one_block_a_layer_more(
    num_tokens: int, block_size: int, window: int, num_window_layers: int
) -> None:
    shape = KVShape(
        num_layers=6, num_kv_heads=2, head_dim=8, window=window, num_window_layers=num_window_layers
    )
    request = shape.request(num_tokens, block_size)
    # A layer's blocks reach less than a block beyond its tokens at each of their two ends.
    excess = request.allocated_bytes - request.token_bytes
    ends = shape.num_layers + num_window_layers
    assert 0 <= excess <= shape.layer_bytes_per_token * (block_size - 1) * ends
    assert 0 <= request.slack_tokens < block_size
    assert request.allocated_bytes <= request.num_blocks * shape.block_bytes(block_size)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_layers": 0}, "num_layers"),
        ({"num_kv_heads": 0}, "num_kv_heads"),
        ({"head_dim": -1}, "head_dim"),
        ({"itemsize": 0}, "itemsize"),
        ({"num_window_layers": 31}, "window_layers"),
        ({"num_window_layers": 2}, "window"),
        ({"num_window_layers": 2, "window": 0}, "window"),
    ],
)
def test_impossible_shapes_are_refused_by_name(change: dict[str, int], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KVShape(**({"num_layers": 30, "num_kv_heads": 3, "head_dim": 64} | change))
    assert caught.value.field == field


def test_impossible_requests_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="context=0"):
        SMOLLM2.request(0, 32)
    with pytest.raises(ConfigError, match="block_size=0"):
        SMOLLM2.request(1, 0)


@pytest.mark.parametrize("file", ["tiny-llama.gguf", "tiny-qwen2.gguf", "tiny-qwen3.gguf"])
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_both_caches_take_what_the_formula_says(golden_fixtures: Path, file: str, block_size: int) -> None:
    config = load_weights(open_gguf(golden_fixtures / file)).config
    for new_cache, itemsize in ((new_native_kv_cache, 2), (new_reference_kv_cache, 4)):
        cache = new_cache(config, num_blocks=7, block_size=block_size)
        shape = kv_shape(config, itemsize=itemsize)
        assert cache.itemsize == itemsize
        assert cache.nbytes == 7 * shape.block_bytes(block_size)
        assert cache[0].nbytes == shape.request(1, block_size).allocated_bytes


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_an_engine_allocates_what_the_formula_says(tiny_model: Path, executor: str) -> None:
    with LLM(str(tiny_model), executor=executor, kv_cache_bytes=1_000_000) as llm:
        parts = llm.parts
        assert parts.kv_block_bytes == parts.kv_shape.block_bytes(32)
        cache = parts.engine._executor._forward._kv_cache  # the arrays themselves
        assert cache.nbytes == parts.limits.num_blocks * parts.kv_block_bytes
        assert 1_000_000 - parts.kv_block_bytes < cache.nbytes <= 1_000_000


FILL = """
import sys
from pathlib import Path
from ridgeline.config.model import ModelConfig
from ridgeline.model.kv_cache import kv_shape, new_native_kv_cache

def rss_bytes():
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024

config = ModelConfig(
    name="m", arch="llama", num_layers=30, hidden_size=576, num_heads=9, num_kv_heads=3, head_dim=64,
    ffn_size=1536, vocab_size=64, context_len=8192, rms_norm_eps=1e-5, rope_dim=64, rope_is_neox=False,
    rope_inv_freq=(),
)
before = rss_bytes()
cache = new_native_kv_cache(config, num_blocks=100, block_size=32)
reserved = rss_bytes() - before
for block in range(50):
    cache[block] = 1
half = rss_bytes() - before
cache[50:] = 1
print(reserved, half, rss_bytes() - before, 100 * kv_shape(config, itemsize=2).block_bytes(32))
"""


def test_resident_memory_grows_by_the_formula_as_blocks_are_first_written() -> None:
    done = subprocess.run([sys.executable, "-c", FILL], capture_output=True, text=True, check=True)
    reserved, half, full, formula = map(int, done.stdout.split())
    assert formula == 73_728_000
    assert full == pytest.approx(formula, rel=0.03)
    assert reserved < 0.03 * formula
    # Huge pages may make the boundary coarse: 2 MiB, beside the 3 %.
    assert half == pytest.approx(formula / 2, abs=0.03 * formula + 2**21)
