from __future__ import annotations

import numpy as np
import pytest

from ridgeline.errors import EngineError
from ridgeline.kernels import ops, reference

SIZES = [1, 7, 8, 64, 100, 576]


def each_isa(compute):
    return [compute(isa) for isa in ops.available_isas()]


def assert_same_bits(results):
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 40])
def test_packing_keeps_every_weight(make_weight, assert_close, quant_type, rows):
    weight = make_weight(quant_type, rows, 512, seed=rows)
    assert_close(
        "dequantize_rows",
        ops.dequantize_rows(weight),
        reference.dequantize_rows(weight),
        quant_type=quant_type,
    )


@pytest.mark.parametrize("cols", [32, 96, 160])
@pytest.mark.parametrize("quant_type", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16"])
def test_packing_rows_of_an_odd_number_of_blocks(make_weight, assert_close, quant_type, cols):
    weight = make_weight(quant_type, 18, cols)
    value, expected = ops.dequantize_rows(weight), reference.dequantize_rows(weight)
    assert_close("dequantize_rows", value, expected, quant_type=quant_type)


def test_quantize_activations(normal, isa):
    x = normal(5, 160) * np.float32(10) ** np.arange(-2, 3, dtype=np.float32)[:, None]
    for value, expected in zip(
        ops.quantize_activations(x, isa=isa), reference.quantize_activations(x), strict=True
    ):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("tokens", [1, 5, 8, 19])
def test_quantize_activations_for_8_bit_weights(normal, isa, tokens):
    x = normal(tokens, 160)
    x[0, :32] = 1e-35
    for value, expected in zip(
        ops.quantize_activations_16(x, isa=isa), reference.quantize_activations_16(x), strict=True
    ):
        np.testing.assert_array_equal(value, expected)


def test_quantize_activations_at_the_extremes(isa):
    tiny, halves = np.float32(1e-35), np.float32(127)
    x = np.zeros((5, 32), np.float32)
    x[1] = tiny  # its inverse would overflow: counts as zero
    x[2] = np.finfo(np.float32).max
    x[3, :3] = -halves, 0.5, 1.5  # ties go to even
    x[4] = -halves
    q, scales, scaled_sums = ops.quantize_activations(x, isa=isa)
    assert not q[:2].any()
    assert not scales[:2].any()
    assert (q[2] == 127).all()
    assert q[3, :3].tolist() == [-127, 0, 2]
    assert (q[4] == -127).all()
    assert scaled_sums[4] == -127 * 32
    assert np.isfinite(scales).all()


@pytest.mark.parametrize("size", SIZES)
def test_rms_norm(normal, assert_close, isa, size):
    x, weight = normal(4, size, std=3), normal(size, seed=1)
    assert_close("rms_norm", ops.rms_norm(x, weight, 1e-5, isa=isa), reference.rms_norm(x, weight, 1e-5))
    assert_same_bits(each_isa(lambda isa: ops.rms_norm(x, weight, 1e-5, isa=isa)))


@pytest.mark.parametrize("size", SIZES)
def test_swiglu(normal, assert_close, isa, size):
    gate, up = normal(3, size, std=4), normal(3, size, seed=1)
    assert_close("swiglu", ops.swiglu(gate, up, isa=isa), reference.swiglu(gate, up))
    assert_same_bits(each_isa(lambda isa: ops.swiglu(gate, up, isa=isa)))


def test_swiglu_at_the_extremes(isa):
    gate = np.array([[-1e30, -200, -88, -1e-20, 0, 1e-20, 88, 200, 1e30]], np.float32)
    value = ops.swiglu(gate, np.ones_like(gate), isa=isa)
    np.testing.assert_allclose(value, np.maximum(gate, 0), atol=1e-7)
    assert np.isnan(
        ops.swiglu(np.full((1, 1), np.nan, np.float32), np.ones((1, 1), np.float32), isa=isa)
    ).all()


def test_swiglu_is_accurate_everywhere(isa):
    gate = np.linspace(-80, 80, 20_001, dtype=np.float32)[None]
    exact = gate / (1 + np.exp(-gate.astype(np.float64)))
    value = ops.swiglu(gate, np.ones_like(gate), isa=isa)
    np.testing.assert_allclose(value, exact, rtol=5e-7, atol=1e-37)


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("rope_dim", [16, 12])
def test_rope(normal, assert_close, is_neox, rope_dim):
    positions = np.array([0, 1, 17, 8191, 100_000], np.int32)
    inv_freq = [10_000.0 ** (-2 * i / rope_dim) for i in range(rope_dim // 2)]
    tables = reference.rope_tables(positions, inv_freq)
    for value, expected in zip(ops.rope_tables(positions, inv_freq), tables, strict=True):
        assert_close("rope_tables", value, expected)
    heads = normal(5, 3, 16)
    rotated = ops.rope(heads, *tables, is_neox=is_neox)
    assert_close("rope", rotated, reference.rope(heads, *tables, is_neox=is_neox))
    np.testing.assert_array_equal(rotated[..., rope_dim:], heads[..., rope_dim:])


def test_an_unknown_instruction_set_is_an_error(normal):
    with pytest.raises(EngineError, match="isa"):
        ops.rms_norm(normal(1, 8), normal(8), 1e-5, isa="sse9")


def test_the_last_instruction_set_is_the_default(make_weight, normal):
    weight, x = make_weight("Q4_1", 4, 32), normal(1, 32)
    np.testing.assert_array_equal(ops.matmul(weight, x), ops.matmul(weight, x, isa=ops.available_isas()[-1]))


def test_shapes_must_agree(normal):
    with pytest.raises(EngineError, match="weight"):
        ops.rms_norm(normal(2, 8), normal(7), 1e-5)
    with pytest.raises(EngineError, match="shape"):
        ops.swiglu(normal(2, 8), normal(2, 7))
    with pytest.raises(EngineError, match="pairs"):
        ops.rope(normal(1, 1, 8), normal(1, 5), normal(1, 5), is_neox=True)
