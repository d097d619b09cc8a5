from __future__ import annotations

import numpy as np
import pytest

from ridgeline.errors import EngineError
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.kernels import ops, reference
from ridgeline.kernels.tensor import QuantTensor

# Where a quant block holds its fp16 scales.
HALF_FIELDS = {
    **{name: (0,) for name in ("Q4_0", "Q5_0", "Q8_0")},
    **{name: (0, 2) for name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K")},
    "Q6_K": (208,),
}

QUANTIZED = sorted(name for name, kind in QUANT_TYPES.items() if kind.quant_block_size > 1)
FLOATS = sorted(name for name, kind in QUANT_TYPES.items() if kind.quant_block_size == 1)


def columns(quant_type: str) -> int:
    return max(96, 2 * QUANT_TYPES[quant_type].quant_block_size)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 31, 67])
def test_equals_the_twin(make_weight, normal, assert_close, *, isa, quant_type, num_tokens):
    cols = columns(quant_type)
    weight, x = make_weight(quant_type, 37, cols), normal(num_tokens, cols)
    assert_close("matmul", ops.matmul(weight, x, isa=isa), reference.matmul(weight, x), quant_type=quant_type)


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 31, 32, 65, 130])
def test_any_number_of_rows(make_weight, normal, assert_close, isa, rows):
    weight, x = make_weight("Q4_1", rows, 64), normal(5, 64)
    assert_close("matmul", ops.matmul(weight, x, isa=isa), reference.matmul(weight, x), quant_type="Q4_1")


@pytest.mark.parametrize("quant_type", FLOATS)
@pytest.mark.parametrize("cols", [1, 7, 8, 31, 33, 100])
def test_float_rows_of_any_length(make_weight, normal, assert_close, *, isa, quant_type, cols):
    weight, x = make_weight(quant_type, 9, cols), normal(6, cols)
    assert_close("matmul", ops.matmul(weight, x, isa=isa), reference.matmul(weight, x), quant_type=quant_type)


def test_float_rows_end_at_the_end_of_their_memory(normal, isa):
    # Row 0 of the weight is followed by NaN, which a read past the end of the row would pick up.
    stored = np.full((3, 13), np.nan, np.float32)
    stored[0] = normal(13)
    x = np.full((2, 13), np.nan, np.float32)
    x[0] = normal(13, seed=1)
    weight = QuantTensor("w", QUANT_TYPES["F32"], stored.shape, stored.view(np.uint8).reshape(-1))
    assert np.isfinite(ops.matmul(weight, x, isa=isa)[0, 0])


@pytest.mark.parametrize("quant_type", QUANTIZED)
def test_int8_activations_stay_near_float_ones(make_weight, normal, isa, quant_type):
    weight, x = make_weight(quant_type, 64, 512), normal(8, 512)
    exact = x.astype(np.float64) @ reference.dequantize_rows(weight).astype(np.float64).T
    error = np.square(ops.matmul(weight, x, isa=isa) - exact).sum() / np.square(exact).sum()
    assert error <= 5e-4


def test_bits_do_not_depend_on_the_instruction_set(make_weight, normal, quant_type):
    cols = columns(quant_type)
    weight, x = make_weight(quant_type, 35, cols), normal(7, cols)
    results = [ops.matmul(weight, x, isa=isa) for isa in ops.available_isas()]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_bits_do_not_depend_on_the_batch(make_weight, normal, isa, quant_type):
    cols = columns(quant_type)
    weight, x = make_weight(quant_type, 21, cols), normal(41, cols)
    whole = ops.matmul(weight, x, isa=isa)
    for start, end in [(0, 1), (40, 41), (1, 3), (2, 5), (3, 7), (5, 41), (7, 9), (8, 17), (1, 16)]:
        np.testing.assert_array_equal(ops.matmul(weight, x[start:end], isa=isa), whole[start:end])


def test_bits_do_not_depend_on_the_threads(make_weight, normal, isa, quant_type):
    cols = columns(quant_type)
    weight, x = make_weight(quant_type, 300, cols), normal(5, cols)
    one = ops.matmul(weight, x, isa=isa)
    for num_threads in (2, 3):
        np.testing.assert_array_equal(ops.matmul(weight, x, num_threads=num_threads, isa=isa), one)


@pytest.mark.parametrize("shape", [(576, 576), (192, 576), (1536, 576), (576, 1536)])
@pytest.mark.parametrize("quant_type", ["Q4_1", "Q8_0"])
@pytest.mark.parametrize("num_tokens", [1, 13])
def test_shapes_of_a_real_model(make_weight, normal, assert_close, *, isa, quant_type, shape, num_tokens):
    weight, x = make_weight(quant_type, *shape), normal(num_tokens, shape[1])
    value = ops.matmul(weight, x, num_threads=2, isa=isa)
    assert_close("matmul", value, reference.matmul(weight, x), quant_type=quant_type)


@pytest.mark.parametrize("quant_type", QUANTIZED)
def test_sums_are_exact_integers(make_weight, isa, quant_type):
    # Scales of one on both sides: outputs are plain integer dot products, small enough for float32.
    cols = QUANT_TYPES[quant_type].quant_block_size
    weight = make_weight(quant_type, 19, cols)
    kind = weight.quant_type
    blocks = weight.data.reshape(-1, kind.type_size).copy()
    for offset in HALF_FIELDS[quant_type]:
        blocks[:, offset : offset + 2] = np.float16(1).reshape(1).view(np.uint8)
    unscaled = QuantTensor("w", kind, weight.shape, blocks.reshape(-1))
    limit = 32767 if quant_type == "Q8_0" else 127
    x = np.random.default_rng(5).integers(-127, 128, (11, cols)).astype(np.float32)
    x[:, ::32] = limit
    exact = x.astype(np.int64) @ reference.dequantize_rows(unscaled).astype(np.int64).T
    assert np.abs(exact).max() < 2**24
    np.testing.assert_array_equal(ops.matmul(unscaled, x, isa=isa), exact.astype(np.float32))


@pytest.mark.parametrize("quant_type", QUANTIZED)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x80, 0x7F])
def test_extreme_quants_and_activations_do_not_saturate(make_weight, *, isa, quant_type, sign, fill):
    cols = 2 * QUANT_TYPES[quant_type].quant_block_size
    weight = make_weight(quant_type, 5, cols)
    kind = weight.quant_type
    blocks = np.full((weight.data.size // kind.type_size, kind.type_size), fill, np.uint8)
    for offset in HALF_FIELDS[quant_type]:  # all scales and minima are 1
        blocks[:, offset : offset + 2] = np.float16(1).reshape(1).view(np.uint8)
    extreme = QuantTensor("w", kind, weight.shape, blocks.reshape(-1))
    x = np.full((5, cols), sign * 127, np.float32)
    np.testing.assert_allclose(
        ops.matmul(extreme, x, isa=isa), reference.matmul(extreme, x), rtol=1e-5, atol=1e-3
    )


def test_a_token_of_zeros_gives_zeros(make_weight, isa, quant_type):
    cols = columns(quant_type)
    weight = make_weight(quant_type, 8, cols)
    assert not ops.matmul(weight, np.zeros((3, cols), np.float32), isa=isa).any()


def test_rows_must_be_whole_quant_blocks(make_weight, normal):
    with pytest.raises(EngineError, match="quant blocks"):
        ops.matmul(make_weight("Q4_1", 2, 64), normal(1, 63))


def test_data_must_have_the_size_of_its_shape(make_weight, normal):
    weight = make_weight("Q8_0", 4, 64)
    short = QuantTensor("w", weight.quant_type, weight.shape, weight.data[:-34])
    with pytest.raises(EngineError, match="size"):
        ops.matmul(short, normal(1, 64))
