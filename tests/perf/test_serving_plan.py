"""Serving plans on a machine of round numbers: the closed forms, each limit at its edge, each resource."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.errors import ConfigError
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.hardware_table import find_hardware
from ridgeline.perf.serving_model import ServingModel, Workload, largest, least
from ridgeline.perf.serving_plan import Resource, ServingPlan

# 1 GB/s, arithmetic 1,000 times as fast, no caches, 0.1 ms a step besides.
FAST = replace(
    PROFILE,
    matmul_flops_per_s={"Q4_1": ((1, 1e12),), "Q8_0": ((1, 1e12),)},
    attention_flops_per_s=1e12,
    caches=(),
    prices=None,
    overheads_s={"step": 1e-4},
)
SLOW = replace(FAST, matmul_flops_per_s={"Q4_1": ((1, 1e9),), "Q8_0": ((1, 1e9),)})
KV_BYTES = 4 * 2 * 32 * 2
REQUEST_BYTES = 20 * 32 * KV_BYTES  # 640 tokens
WORK = Workload(input_len=512, output_len=128)


def plan(profile: HardwareProfile = FAST, work: Workload = WORK, memory: int = 10**9) -> ServingPlan:
    return ServingPlan(ServingModel(SHAPE, profile, work), kv_memory_bytes=memory, block_size=32)


def test_a_decode_step_is_weights_plus_contexts_plus_overhead() -> None:
    serving = plan().serving
    one, two = serving.decode_s(1), serving.decode_s(2)
    assert two - one == pytest.approx(577 * KV_BYTES / 1e9, rel=0.02)  # and a few activations
    weights_s = serving.step_weight_bytes / 1e9
    assert one == pytest.approx(weights_s + 577 * KV_BYTES / 1e9 + 1e-4, rel=0.01)
    assert serving.decode_tok_s_limit == pytest.approx(1 / weights_s, rel=0.05)


def test_rounds_add_up() -> None:
    """B requests take output_len steps of B and B prompts: that many a round, so far apart their tokens."""
    serving = plan().serving
    round_s = 128 * serving.decode_s(8) + 8 * serving.prefill_s
    assert serving.requests_per_s(8) == pytest.approx(8 / round_s)
    assert serving.tpot_s(8) == pytest.approx(round_s / 128)


def test_a_prompt_in_chunks_is_the_sum_of_its_steps() -> None:
    serving = ServingModel(SHAPE, FAST, Workload(input_len=70, output_len=1))
    assert serving.prompt_s(32) > serving.prompt_s(70) == serving.prompt_s(1000)
    assert serving.prompt_s(70) == pytest.approx(serving.chunk_s(0, 70))


def test_capacity_counts_whole_requests() -> None:
    assert plan(memory=10 * REQUEST_BYTES).capacity == 10
    assert plan(memory=10 * REQUEST_BYTES - 1).capacity == 9
    assert plan(memory=-5).capacity == 0


def test_bandwidth_binds_first_where_contexts_outweigh_the_weights() -> None:
    first = plan().first_bound
    assert first.resource is Resource.MEMORY_BANDWIDTH
    assert first.batch == -(-SHAPE.weights_bytes // (576 * KV_BYTES))
    assert first.batches[Resource.COMPUTE] is None
    assert "576" in first.reason


def test_compute_binds_first_where_arithmetic_is_slow() -> None:
    made = plan(SLOW, Workload(input_len=8, output_len=8))
    first, serving = made.first_bound, made.serving
    assert first.resource is Resource.COMPUTE
    assert serving.terms(first.batch)[0] >= serving.terms(first.batch)[1]
    assert first.batch == 1 or serving.terms(first.batch - 1)[0] < serving.terms(first.batch - 1)[1]


def test_capacity_binds_first_where_memory_is_small() -> None:
    work = Workload(input_len=8, output_len=8)
    first = plan(work=work, memory=2 * 32 * KV_BYTES).first_bound
    assert (first.resource, first.batch) == (Resource.MEMORY_CAPACITY, 3)


def test_the_largest_batch_within_the_tpot_limit() -> None:
    made = plan(work=replace(WORK, tpot_s=0.02))
    assert made.slo_batch is not None
    assert made.serving.tpot_s(made.slo_batch) <= 0.02 < made.serving.tpot_s(made.slo_batch + 1)
    assert plan().slo_batch is None
    assert plan(work=replace(WORK, tpot_s=1e-6)).slo_batch == 0


def test_advice_keeps_within_memory_and_limit_and_says_why() -> None:
    tight = plan(memory=3 * REQUEST_BYTES)
    assert tight.max_num_seqs.value == 3
    assert "640 tokens as the memory holds" in tight.max_num_seqs.reason
    limited = plan(work=replace(WORK, tpot_s=plan().serving.tpot_s(2) * 1.001))
    assert limited.max_num_seqs.value == 2
    assert "within the TPOT limit" in limited.max_num_seqs.reason
    ample = plan()
    batch = ample.max_num_seqs.value
    assert batch is not None
    assert batch < ample.capacity
    best = ample.serving.requests_per_s(ample.capacity)
    assert ample.serving.requests_per_s(batch) >= 0.95 * best > ample.serving.requests_per_s(batch - 1)


def test_the_budget_keeps_a_mixed_step_within_the_limit() -> None:
    made = plan(SLOW, replace(WORK, tpot_s=0.2))
    batch, budget = made.max_num_seqs.value, made.max_num_batched_tokens.value
    assert batch is not None
    assert budget is not None
    chunk = budget - batch
    assert made.serving.chunk_s(batch, chunk) <= 0.2 < made.serving.chunk_s(batch, chunk + 1)


def test_a_limit_that_only_crumbs_of_prompts_keep_yields_to_their_speed() -> None:
    """One token of a prompt more reads all weights again: far below 80 % of the speed of larger chunks."""
    made = plan(work=replace(WORK, tpot_s=plan().serving.tpot_s(1) * 1.001))
    batch, budget = made.max_num_seqs.value, made.max_num_batched_tokens.value
    assert batch == 1
    assert made.serving.chunk_s(batch, budget - batch) > made.serving.workload.tpot_s
    assert "as a mean keeps the limit" in made.max_num_batched_tokens.reason


def test_a_budget_without_a_limit_reaches_the_best_speed() -> None:
    made = plan(SLOW)
    assert made.max_num_batched_tokens.value is not None
    assert "of the best prefill speed" in made.max_num_batched_tokens.reason
    crowded = plan(SLOW, Workload(input_len=1, output_len=1000))
    assert crowded.max_num_batched_tokens.value >= (crowded.max_num_seqs.value or 0) + 16


def test_kv_cache_is_what_the_advised_batch_holds() -> None:
    made = plan(memory=3 * REQUEST_BYTES)
    assert made.kv_cache_bytes.value == 3 * REQUEST_BYTES
    assert "3 requests × 20 blocks" in made.kv_cache_bytes.reason


def test_a_rate_needs_a_batch_or_is_beyond_reach() -> None:
    reached = plan().serving.requests_per_s(4)
    made = plan(work=replace(WORK, rate_per_s=reached))
    assert made.needed_batch == 4
    assert plan(work=replace(WORK, rate_per_s=1e9)).needed_batch is None
    assert plan().needed_batch is None
    # A rate above what the advised batch serves asks for more of them.
    most = plan(memory=200 * REQUEST_BYTES)
    wanted = most.serving.requests_per_s((most.max_num_seqs.value or 0) + 5)
    asked = plan(work=replace(WORK, rate_per_s=wanted), memory=200 * REQUEST_BYTES)
    assert asked.max_num_seqs.value == (most.max_num_seqs.value or 0) + 5
    assert "at once" in asked.max_num_seqs.reason


def test_nothing_fits_is_none_not_zero() -> None:
    made = plan(memory=0)
    assert made.max_num_seqs.value is made.kv_cache_bytes.value is made.best_requests_per_s is None
    assert made.first_bound.resource is Resource.MEMORY_CAPACITY
    assert "not one request" in made.first_bound.reason
    assert (
        json.loads(json.dumps(made.document(), allow_nan=False))["recommended"]["max_num_seqs"]["value"]
        is None
    )


def test_windows_shrink_what_contexts_read() -> None:
    windowed = replace(SHAPE, window=32, num_window_layers=4)
    made = ServingPlan(ServingModel(windowed, FAST, WORK), kv_memory_bytes=10**9, block_size=32)
    assert made.first_bound.batches[Resource.MEMORY_BANDWIDTH] == -(-SHAPE.weights_bytes // (32 * KV_BYTES))


def test_an_unpublished_peak_leaves_prefill_unknown() -> None:
    serving = ServingModel(SHAPE, find_hardware("m4-pro").profile(), WORK)
    assert not serving.is_compute_known
    assert serving.prefill_tok_s_limit is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"input_len": 0}, "input_len"),
        ({"output_len": -1}, "output_len"),
        ({"rate_per_s": 0.0}, "rate"),
        ({"tpot_s": float("nan")}, "tpot"),
        ({"ttft_s": float("inf")}, "ttft"),
    ],
)
def test_workloads_that_cannot_be(changes: dict[str, float], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        replace(WORK, **changes)
    assert refused.value.field == field


def test_searches_end_at_their_edges() -> None:
    for edge in range(12):
        assert largest(lambda number, edge=edge: number <= edge, 10) == min(edge, 10)
        assert least(lambda number, edge=edge: number > edge, 10) == (edge + 1 if edge < 10 else None)
    assert largest(lambda _: True, 0) == 0
