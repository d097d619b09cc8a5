"""Predictions by hand: prices of the calibrated shape, ratios of bounds for others, bounds without prices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.perf.priced_machine import PRICES, PROFILE, SHAPE

from ridgeline.perf.hardware import CacheLevel
from ridgeline.perf.op_bounds import OpBounds, best_rate
from ridgeline.perf.op_cost import OPS
from ridgeline.perf.op_costs import step_costs
from ridgeline.perf.predict import STEP_OVERHEAD, Predictor, predict_step
from ridgeline.perf.step_shape import StepRow, StepShape

DECODE = StepShape((StepRow(99, 1, 1), StepRow(40, 1, 1)))
PREFILL = StepShape((StepRow(0, 48, 0),))


def test_the_calibrated_shape_takes_its_prices() -> None:
    prediction = predict_step(SHAPE, PROFILE, DECODE)
    assert set(prediction.op_s) == {*OPS, STEP_OVERHEAD}
    assert prediction.op_s["o_proj"] == pytest.approx(2e-4)
    assert prediction.op_s["qkv_proj"] == pytest.approx(2e-4 + 1e-6)
    assert prediction.op_s["lm_head"] == pytest.approx(2e-4)
    assert prediction.op_s[STEP_OVERHEAD] == pytest.approx(1e-4 + 2e-5 + 2e-6)
    prices, calls, pairs, old = PRICES.attention, 4 + 2, 100 + 41, 2 * 32 * 2 * (99 + 40)
    layer_s = (
        prices.layer_s
        + prices.token_s * 2 * 64
        + prices.call_s * calls * 32
        + prices.single_pair_s * pairs * 64
        + prices.old_byte_s * old
    )
    assert prediction.op_s["attention"] == pytest.approx(4 * layer_s)
    assert prediction.total_s == pytest.approx(sum(prediction.op_s.values()))


def test_a_step_without_logits_takes_no_head() -> None:
    op_s = predict_step(SHAPE, PROFILE, PREFILL).op_s
    assert op_s["lm_head"] == op_s["sample"] == op_s["norms"] == 0
    assert op_s["down_proj"] == pytest.approx(48e-4)


def test_remembered_row_counts_stay_right() -> None:
    predictor = Predictor(SHAPE, PROFILE)
    first = predictor.predict(DECODE)
    predictor.predict(PREFILL)
    assert predictor.predict(DECODE) == first == predict_step(SHAPE, PROFILE, DECODE)


def test_another_model_takes_the_ratio_of_the_bounds() -> None:
    twice = replace(
        SHAPE,
        num_layers=8,
        matrix_types={n: t * 2 if n != "token_embd" else t for n, t in SHAPE.matrix_types.items()},
    )
    here, there = predict_step(SHAPE, PROFILE, PREFILL).op_s, predict_step(twice, PROFILE, PREFILL).op_s
    for op in ("qkv_proj", "o_proj", "gate_up_proj", "attention"):
        assert there[op] == pytest.approx(2 * here[op], rel=0.02), op


def test_a_heavier_format_takes_longer_where_memory_binds() -> None:
    slow_memory = replace(PROFILE, dram_bytes_per_s=1e6, caches=())
    heavy = SHAPE.with_weights("F16")
    ratio = predict_step(heavy, slow_memory, DECODE).op_s["down_proj"]
    ratio /= predict_step(SHAPE, slow_memory, DECODE).op_s["down_proj"]
    assert ratio == pytest.approx(2 / (20 / 32), rel=0.05)


def test_without_prices_a_step_takes_its_bounds() -> None:
    sheet = replace(PROFILE, prices=None)
    prediction = predict_step(SHAPE, sheet, DECODE)
    costs = step_costs(SHAPE, DECODE)
    down = costs["down_proj"]
    # 2 tokens: on the line from 1 to 4 GFLOP/s between 1 and 8 tokens.
    peak = 1e9 + 3e9 / 7
    assert prediction.op_s["down_proj"] == pytest.approx(max(down.flops / peak, down.weight_bytes / 1e9))
    assert prediction.op_s[STEP_OVERHEAD] == 5e-4
    assert prediction.total_s == pytest.approx(sum(OpBounds(SHAPE, sheet).of(DECODE).values()) + 5e-4)


def test_old_kv_that_a_cache_holds_costs_no_memory() -> None:
    big = CacheLevel(name="L3", size_bytes=2**30, read_bytes_per_s=1e10)
    cached = replace(PROFILE, caches=(big,))
    op_s = predict_step(SHAPE, PROFILE, DECODE).op_s["attention"]
    saved = 4 * PRICES.attention.old_byte_s * 2 * 32 * 2 * 139
    assert predict_step(SHAPE, cached, DECODE).op_s["attention"] == pytest.approx(op_s - saved)
    slow_compute = replace(cached, attention_flops_per_s=1e15, matmul_flops_per_s={"Q4_1": ((1, 1e15),)})
    kv_bytes = 4 * 2 * 32 * 2 * (100 + 41)
    bounds = OpBounds(SHAPE, slow_compute).with_ceilings(DECODE)
    assert bounds["attention"] == (pytest.approx(kv_bytes / 1e10), "L3")
    assert bounds["o_proj"][1] == "L3"


def test_one_token_is_bound_by_memory_and_many_by_compute() -> None:
    bounds = OpBounds(SHAPE, replace(PROFILE, dram_bytes_per_s=1e8))
    assert bounds.with_ceilings(StepShape((StepRow(0, 1, 1),)))["gate_up_proj"][1] == "dram"
    assert bounds.with_ceilings(StepShape((StepRow(0, 512, 1),)))["gate_up_proj"][1] == "matmul Q4_1"


def test_a_peak_never_falls_with_more_tokens() -> None:
    curve = ((1, 10.0), (2, 30.0), (8, 20.0))
    assert [best_rate(curve, n) for n in (0, 1, 2, 5, 8, 99)] == [10, 10, 30, 30, 30, 30]
    assert best_rate(((1, 10.0), (3, 30.0)), 2) == 20


def test_attention_in_a_window_is_priced_by_what_it_sees() -> None:
    """All layers see the last 8 of 31 positions: of a price without caches, the share of the positions."""
    windowed = replace(SHAPE, window=8, num_window_layers=SHAPE.num_layers)
    step, machine = StepShape((StepRow(30, 1, 1),)), replace(PROFILE, dram_bytes_per_s=1e6, caches=())
    whole = predict_step(SHAPE, machine, step)
    seen = predict_step(windowed, machine, step)
    assert seen.op_s["attention"] == pytest.approx(whole.op_s["attention"] * 8 / 31)
    assert seen.op_s["qkv_proj"] == whole.op_s["qkv_proj"]
    assert seen.total_s < whole.total_s
