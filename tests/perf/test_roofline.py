"""Rooflines of whole steps on data sheets and on a machine of round numbers, against figures made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.perf.crossover import decode_step, prefill_step, ridge_batch
from ridgeline.perf.hardware import CacheLevel, HardwareProfile
from ridgeline.perf.hardware_table import find_hardware
from ridgeline.perf.named_models import find_named_model
from ridgeline.perf.op_bounds import OpBounds
from ridgeline.perf.op_cost import OPS
from ridgeline.perf.op_costs import spilled_bytes, step_costs
from ridgeline.perf.roofline import (
    peak_flops_per_s,
    ridge_batch_at_peak,
    ridge_intensity,
    roofline_of,
    step_roofline,
)
from ridgeline.perf.step_shape import StepRow, StepShape

H100, A100 = find_hardware("h100").profile(), find_hardware("a100-80gb").profile()
LLAMA_3_8B = find_named_model("llama-3-8b").shape()
LLAMA_2_7B = find_named_model("llama-2-7b").shape()

# Parameters as published: 8,030,261,248 (Meta-Llama-3-8B), 6,738,415,616 (Llama-2-7b); two bytes each, and
# two more for every norm weight, which counts as float32: (2 × 32 + 1) × 4,096.
NORM_BYTES = 2 * 65 * 4096


def test_weights_are_those_of_the_published_parameter_counts() -> None:
    assert LLAMA_3_8B.weights_bytes == 2 * 8_030_261_248 + NORM_BYTES  # 16.06 GB
    assert LLAMA_2_7B.weights_bytes == 2 * 6_738_415_616 + NORM_BYTES


def test_kv_bytes_per_token() -> None:
    """Llama 3's eight KV heads make 128 KiB a token, Llama 2's thirty-two 512 KiB."""
    assert LLAMA_3_8B.kv_shape.bytes_per_token == 128 * 1024
    assert LLAMA_2_7B.kv_shape.bytes_per_token == 512 * 1024


@pytest.mark.parametrize(
    ("profile", "bandwidth", "published_ms"), [(H100, 3.35e12, 4.79), (A100, 2.039e12, 7.88)]
)
def test_the_weight_streaming_limit(profile: HardwareProfile, bandwidth: float, published_ms: float) -> None:
    """16.06 GB over the bandwidth is the figure quoted; a step reads all but the embedding table, of which
    it needs a row: 128,256 × 4,096 × 2 bytes less.
    """
    assert 1e3 * 16.06e9 / bandwidth == pytest.approx(published_ms, abs=0.01)
    assert 1e3 * LLAMA_3_8B.weights_bytes / bandwidth == pytest.approx(published_ms, abs=0.01)
    step = roofline_of(list(step_roofline(OpBounds(LLAMA_3_8B, profile), decode_step(1, 0)).values()))
    table = 128_256 * 4096 * 2
    assert step.time_s == pytest.approx((LLAMA_3_8B.weights_bytes - table) / bandwidth, rel=1e-3)
    assert step.bound == "memory"


def test_decode_leaves_an_h100_idle_and_prefill_does_not() -> None:
    bounds = OpBounds(LLAMA_3_8B, H100)
    decode = roofline_of(list(step_roofline(bounds, decode_step(1, 1024)).values()))
    assert decode.intensity == pytest.approx(1.0, rel=0.05)  # 2 FLOPs for each 2-byte weight
    assert decode.attainable_flops_per_s / 989.5e12 < 0.004
    prefill = roofline_of(list(step_roofline(bounds, prefill_step(0, 2048)).values()))
    assert prefill.bound == "compute"
    # 2 FLOPs a weight and token in the layers (6.98e9 weights: 8.03e9 less table and head of 0.525e9 each),
    # 4 × 32 heads × 128 × 32 layers for each of 2,048 × 2,049 / 2 pairs of attention.
    by_hand = 2 * 2048 * (8_030_261_248 - 2 * 128_256 * 4096) + 4 * 32 * 128 * 32 * 2048 * 2049 / 2
    assert prefill.flops == pytest.approx(by_hand, rel=0.01)
    assert prefill.time_s == pytest.approx(by_hand / 989.5e12, rel=0.05)


def test_the_ridge_batch_in_closed_form_is_the_one_found() -> None:
    """With 16-bit weights it equals the ridge intensity, 295 sequences."""
    assert ridge_batch_at_peak(LLAMA_3_8B, H100) == pytest.approx(ridge_intensity(H100, "F16"), rel=1e-3)
    for model, profile in ((LLAMA_3_8B, H100), (LLAMA_2_7B, A100), (SHAPE, PROFILE)):
        found = ridge_batch(OpBounds(model, profile))
        if profile is not PROFILE:
            assert found == pytest.approx(ridge_batch_at_peak(model, profile), rel=1e-6)
        else:
            assert found is not None


def test_quantised_weights_move_the_ridge_by_their_bytes() -> None:
    """Q4_0 has 18 bytes for 32 weights and is multiplied in 16 bits: 18 / 64 of the batch, vectors aside."""
    quantised = find_named_model("llama-3-8b").shape("Q4_0")
    assert ridge_batch_at_peak(quantised, H100) == pytest.approx(295.4 * 18 / 64, rel=2e-3)


def test_no_published_peak_no_ridge() -> None:
    m4 = find_hardware("m4-max").profile()
    assert ridge_batch_at_peak(LLAMA_3_8B, m4) is None
    assert ridge_batch(OpBounds(LLAMA_3_8B, m4)) is None


def test_ops_add_up_and_idle_ones_are_zero() -> None:
    bounds = OpBounds(SHAPE, PROFILE)
    ops = step_roofline(bounds, StepShape([StepRow(5, 3, 0)]))
    assert tuple(ops) == OPS
    assert ops["lm_head"].bound is ops["lm_head"].intensity is ops["lm_head"].attainable_flops_per_s is None
    whole = roofline_of(list(ops.values()))
    assert whole.flops == sum(
        cost.flops for cost in step_costs(SHAPE, StepShape([StepRow(5, 3, 0)])).values()
    )
    assert whole.time_s == pytest.approx(sum(bounds.of(StepShape([StepRow(5, 3, 0)])).values()))


def test_one_op_by_hand() -> None:
    """gate_up_proj of the round machine: 4 layers × 2 × 128 × 64 weights at 20 bytes for 32, one token."""
    (op,) = [
        each for name, each in step_roofline(OpBounds(SHAPE, PROFILE), decode_step(1, 0)).items()
        if name == "gate_up_proj"
    ]  # fmt: skip
    weights = 4 * 2 * 128 * 64
    assert op.traffic_bytes == weights * 20 // 32
    assert op.flops == 2 * weights + 4 * 4 * 128
    assert op.memory_s == pytest.approx(weights * 20 / 32 / 1e9)
    assert op.compute_s == pytest.approx(op.flops / 1e9)
    assert op.bound == "compute"
    assert op.attainable_flops_per_s == pytest.approx(1e9)


def test_the_peak_is_the_best_of_all_token_counts() -> None:
    assert peak_flops_per_s(PROFILE, "Q4_1") == 4e9
    assert ridge_intensity(PROFILE, "Q4_1") == 4.0
    assert peak_flops_per_s(replace(PROFILE, matmul_flops_per_s={}), "Q4_1") is None


def test_activations_beyond_the_last_cache_count_as_memory() -> None:
    """64 rows of logits are 64 × 256 × 4 bytes, and their inputs; a cache of 10,000 bytes holds no more."""
    step = StepShape([StepRow(0, 64, 64)])
    cost = step_costs(SHAPE, step)["lm_head"]
    assert cost.activation_bytes > 64 * 256 * 4
    assert spilled_bytes(SHAPE, "lm_head", cost, 10_000) == cost.activation_bytes - 10_000
    assert spilled_bytes(SHAPE, "lm_head", cost, cost.activation_bytes) == 0
    layered = step_costs(SHAPE, step)["gate_up_proj"]
    assert spilled_bytes(SHAPE, "gate_up_proj", layered, 10_000) == layered.activation_bytes - 4 * 10_000
    small = replace(PROFILE, caches=(CacheLevel(name="L3", size_bytes=10_000, read_bytes_per_s=1e10),))
    large = replace(PROFILE, caches=(CacheLevel(name="L3", size_bytes=150_000, read_bytes_per_s=1e10),))
    assert SHAPE.weights_bytes > 75_000
    spilled = OpBounds(SHAPE, small).traffic_bytes(step)["lm_head"]
    assert spilled == cost.weight_bytes + cost.activation_bytes - 10_000
    assert OpBounds(SHAPE, large).traffic_bytes(step)["lm_head"] == cost.weight_bytes
    terms = OpBounds(SHAPE, small).terms(step)["lm_head"]
    assert terms[1] == pytest.approx(spilled / 1e9)
