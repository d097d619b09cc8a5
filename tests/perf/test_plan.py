"""Plans: concurrency against context by hand, and what runs out first."""

from __future__ import annotations

import pytest

from ridgeline.errors import ConfigError
from ridgeline.perf.kv_memory import KVShape
from ridgeline.perf.kv_sizing import KVCacheSettings
from ridgeline.perf.plan import Limit, Plan, default_contexts, make_plan

SHAPE = KVShape(num_layers=30, num_kv_heads=3, head_dim=64)
BLOCK = 737_280


def plan(contexts: list[int], *, blocks: int = 100, memory: int = 10**9, weights: int | None = 10**6) -> Plan:
    settings = KVCacheSettings(
        block_size=32, max_num_seqs=32, max_model_len=8192, kv_cache_bytes=blocks * BLOCK
    )
    return make_plan(SHAPE, settings, weights_bytes=weights, memory_bytes=memory, contexts=contexts)


def test_concurrency_counts_whole_blocks() -> None:
    document = plan([1, 32, 33, 64, 3200, 3201]).document()
    assert document["max_concurrency"] == {"1": 100, "32": 100, "33": 50, "64": 50, "3200": 1, "3201": 0}
    assert document["kv_cache_bytes"] == 100 * BLOCK
    assert document["max_cached_tokens"] == 3200
    assert document["kv_bytes_per_token"] == 23_040
    assert document["decode_tok_s_limit"] is document["ridge_batch"] is None


def test_windowed_requests_share_the_bytes_they_save() -> None:
    shape = KVShape(num_layers=36, num_kv_heads=8, head_dim=64, window=128, num_window_layers=18)
    settings = KVCacheSettings(
        block_size=32, max_num_seqs=32, max_model_len=8192, kv_cache_bytes=10 * 155_713_536
    )
    made = make_plan(shape, settings, weights_bytes=None, memory_bytes=10**10, contexts=[4096])
    assert made.cache.kv_cache_bytes <= 10 * 155_713_536
    assert made.max_concurrency(made.requests[0]) == made.cache.kv_cache_bytes // 155_713_536


@pytest.mark.parametrize(
    ("context", "changes", "limit"),
    [
        (32, {}, Limit.MAX_NUM_SEQS),
        (96, {}, Limit.MAX_NUM_SEQS),  # 33 requests of 3 blocks
        (97, {}, Limit.KV_CACHE),
        (32, {"weights": 10**9 + 1}, Limit.WEIGHTS),
        (32, {"weights": 10**9 - 100 * BLOCK + 1}, Limit.MEMORY),
        (32, {"weights": 10**9 - 100 * BLOCK}, Limit.MAX_NUM_SEQS),
    ],
)
def test_what_runs_out_first(context: int, changes: dict[str, int], limit: Limit) -> None:
    made = plan([context], **changes)
    assert made.first_limit(made.requests[0]) is limit


def test_unknown_weights_are_null_not_zero() -> None:
    assert plan([32], weights=None).document()["weights_bytes"] is None


def test_contexts_have_a_default_and_must_hold_a_token() -> None:
    assert default_contexts(8192) == [128, 512, 2048, 8192]
    assert default_contexts(100) == [100]
    assert [r.num_tokens for r in plan([]).requests] == [128, 512, 2048, 8192]
    with pytest.raises(ConfigError, match="context=0"):
        plan([0])
