"""Costs of a step by hand; tests/perf/test_counted_costs.py compares them with a forward pass that counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.perf.context_sums import distinct_positions, read_positions, visible_positions
from ridgeline.perf.model_dims import ModelDims
from ridgeline.perf.model_shape import ModelShape, model_shape_of_dims
from ridgeline.perf.op_cost import OPS, OpCost
from ridgeline.perf.op_costs import (
    OpCosts,
    WorkTotals,
    distinct_kv_bytes,
    input_bytes,
    step_costs,
    total_cost,
)
from ridgeline.perf.step_shape import StepRow, StepShape

LLAMA_3_8B = ModelDims(
    layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256, weight_type="F16"
)
DECODE = StepShape([StepRow(1023, 1, 1)])


def llama() -> ModelShape:
    return model_shape_of_dims(LLAMA_3_8B)


def test_decode_of_one_token_reads_every_weight_once_but_the_embedding() -> None:
    costs = step_costs(llama(), DECODE)
    assert tuple(costs) == OPS
    embedding = 128256 * 4096 * 2
    assert total_cost(costs).weight_bytes == llama().weights_bytes - embedding + 4096 * 2
    assert costs["lm_head"].weight_bytes == embedding
    assert costs["gate_up_proj"].weight_bytes == 32 * 2 * 14336 * 4096 * 2


def test_a_products_flops_are_two_for_every_weight_and_token() -> None:
    costs = step_costs(llama(), StepShape([StepRow(0, 100, 0), StepRow(7, 1, 1)]))
    tokens = 101
    swiglu, residual, norm = 4 * 14336, 4096, 4 * 4096 + 4
    assert costs["gate_up_proj"].flops == tokens * 32 * (2 * 2 * 14336 * 4096 + swiglu)
    assert costs["down_proj"].flops == tokens * (32 * (2 * 14336 * 4096 + residual) + 31 * norm)
    assert costs["lm_head"].flops == 2 * 4096 * 128256
    assert costs["sample"].flops == 128256


def test_attention_is_causal_exact_and_reads_kv_once_for_all_heads_of_a_group() -> None:
    cost = step_costs(llama(), DECODE)["attention"]
    per_position = 4 * 128 + 4
    assert cost.flops == 32 * (32 * 1024 * per_position + 32 + 4096)
    assert cost.kv_read_bytes == 1024 * 131_072
    cost = step_costs(llama(), StepShape([StepRow(0, 10, 0)]))["attention"]
    assert cost.flops == 32 * (32 * 55 * per_position + 10 * (32 + 4096))
    assert cost.kv_read_bytes == (8 + 10) * 131_072  # tokens 0–7 read 8 positions, tokens 8–9 ten


def test_every_token_writes_its_k_and_v_once() -> None:
    costs = step_costs(llama(), StepShape([StepRow(50, 3, 1), StepRow(0, 4, 1)]))
    assert total_cost(costs).kv_written_bytes == costs["qkv_proj"].kv_written_bytes == 7 * 131_072


def test_a_step_without_logits_leaves_out_the_head() -> None:
    costs = step_costs(llama(), StepShape([StepRow(0, 64, 0)]))
    for op in ("norms", "lm_head", "sample"):
        assert costs[op] == OpCost(0, 0, 0, 0, 0)


def test_windowed_layers_see_and_read_the_window_only() -> None:
    dims = ModelDims(
        layers=36, hidden=2880, heads=64, kv_heads=8, head_dim=64, ffn=2880, vocab=1000, window=128,
        window_layers=18,
    )  # fmt: skip
    model = model_shape_of_dims(dims)
    cost = step_costs(model, StepShape([StepRow(4095, 1, 1)]))["attention"]
    assert cost.kv_read_bytes == 155_713_536
    assert distinct_kv_bytes(model, [StepRow(4095, 1, 1)]) == 155_713_536


def test_inputs_take_the_form_of_their_weights() -> None:
    assert input_bytes(["F16"], 64) == 256
    assert input_bytes(["Q8_0"], 64) == 128 + 2 * 4
    assert input_bytes(["Q4_K", "Q6_K"], 256) == 256 + 8 * 8
    assert input_bytes(["Q4_0", "Q8_0"], 64) == (64 + 16) + (128 + 8)


def test_missing_dimensions_and_broken_quant_blocks_are_named() -> None:
    with pytest.raises(ConfigError, match="ffn"):
        model_shape_of_dims(ModelDims(layers=1, kv_heads=1, head_dim=8, heads=1, hidden=8, vocab=10))
    with pytest.raises(ConfigError, match="Q4_K"):
        model_shape_of_dims(
            ModelDims(
                layers=1, kv_heads=1, head_dim=64, heads=1, hidden=64, ffn=64, vocab=9, weight_type="Q4_K"
            )
        )
    with pytest.raises(ConfigError, match=r"Q4_K.*4100|4100.*Q4_K"):
        model_shape_of_dims(
            ModelDims(layers=1, kv_heads=1, head_dim=256, heads=1, hidden=4100, ffn=256, vocab=9)
        ).with_weights("Q4_K")


rows = st.tuples(st.integers(0, 90), st.integers(1, 60), st.none() | st.integers(1, 70))


@given(rows)
def test_sums_over_contexts_are_those_added_up_token_by_token(row: tuple[int, int, int | None]) -> None:
    computed, scheduled, window = row
    seen = [range(max(0, p + 1 - (window or p + 1)), p + 1) for p in range(computed, computed + scheduled)]
    groups = [seen[i : i + 8] for i in range(0, scheduled, 8)]
    assert visible_positions(computed, scheduled, window) == sum(map(len, seen))
    assert read_positions(computed, scheduled, window) == sum(len(set().union(*g)) for g in groups)
    assert distinct_positions(computed, scheduled, window) == len(set().union(*seen))


STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40), st.integers(0, 2)), max_size=4), max_size=6
)


@given(STEPS, st.sampled_from([0, 7]))
def test_the_work_of_many_steps_is_the_sum_of_each(
    steps: list[list[tuple[int, int, int]]], windows: int
) -> None:
    dims = replace(LLAMA_3_8B, window=64, window_layers=windows) if windows else LLAMA_3_8B
    model = model_shape_of_dims(dims)
    totals, costs = WorkTotals(model), OpCosts(model)
    each = [costs.of(StepShape([StepRow(*row) for row in rows])) for rows in steps]
    for rows in steps:
        totals.add(rows)
    found = totals.by_op()
    assert tuple(found) == OPS
    for op in OPS:
        assert found[op] == tuple(sum(step[op][field] for step in each) for field in range(5))


def test_costs_of_a_batch_are_linear_but_for_the_shared_weights() -> None:
    costs = OpCosts(llama())
    one = total_cost(costs.of(DECODE))
    eight = total_cost(costs.of(StepShape(list(DECODE.rows) * 8)))
    assert eight.flops == 8 * one.flops
    assert eight.kv_bytes == 8 * one.kv_bytes
    assert eight.weight_bytes == one.weight_bytes + 7 * 4096 * 2
