"""Dequantisers, bit for bit against the gguf package's."""

import gguf
import numpy as np
import pytest

from ridgeline.errors import EngineError
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.kernels.dequantize import dequantize

# Byte offsets of the float16 scales in a quant block.
SCALES_AT = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
ROWS, QUANT_BLOCKS_PER_ROW = 37, 24


def random_rows(name, *, rows=ROWS, seed=0):
    """Random stored bytes [rows, row bytes] of that type: every pattern of bits, NaN and infinity too."""
    rng = np.random.default_rng([seed, QUANT_TYPES[name].type_id])
    return rng.integers(0, 256, (rows, QUANT_BLOCKS_PER_ROW * QUANT_TYPES[name].type_size), dtype=np.uint8)


def with_scales(name, stored, scales):
    """The same bytes with the given float16 scales, in turn, instead of random ones."""
    stored = stored.copy()
    quant_blocks = stored.reshape(-1, QUANT_TYPES[name].type_size)
    for at in SCALES_AT[name]:
        column = np.resize(np.asarray(scales, np.float16), len(quant_blocks))
        quant_blocks[:, at : at + 2] = np.roll(column, at)[:, np.newaxis].view(np.uint8)
    return stored


def oracle(name, stored):
    with np.errstate(invalid="ignore"):
        return gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[name])


def shape_of(name, stored):
    quant_type = QUANT_TYPES[name]
    return (len(stored), stored.shape[1] // quant_type.type_size * quant_type.quant_block_size)


def assert_same_bits(actual, expected):
    assert actual.dtype == np.float32
    assert actual.shape == expected.shape
    # A NaN's payload is no part of its value; all else must agree in every bit, signs of zeros too.
    assert np.array_equal(np.isnan(actual), np.isnan(expected))
    numbers = ~np.isnan(expected)
    assert np.array_equal(actual[numbers].view(np.uint32), expected[numbers].view(np.uint32))


@pytest.mark.parametrize("name", sorted(QUANT_TYPES))
def test_random_bytes(name):
    stored = random_rows(name)
    assert_same_bits(dequantize(QUANT_TYPES[name], stored, shape_of(name, stored)), oracle(name, stored))


@pytest.mark.parametrize("name", sorted(SCALES_AT))
@pytest.mark.parametrize(
    "scales",
    [
        [6e-8, -6e-8, 1e-7, 3.3e-5, -6.1e-5],
        [1.0, -1.0, 0.0, -0.0],
        [0.0123, -0.377, 2.5, -13.7, 65504.0, -65504.0],
    ],
    ids=["subnormal", "signs", "ordinary"],
)
def test_scales_of_every_kind(name, scales):
    stored = with_scales(name, random_rows(name, seed=1), scales)
    actual = dequantize(QUANT_TYPES[name], stored, shape_of(name, stored))
    assert np.isfinite(actual).all()
    assert np.count_nonzero(actual)
    assert_same_bits(actual, oracle(name, stored))


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_half_precision_value(name):
    stored = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256).view(np.uint8)
    assert_same_bits(dequantize(QUANT_TYPES[name], stored, (256, 256)), oracle(name, stored))


def test_known_values_of_one_quant_block():
    halves = np.array([0.5, -2.0], np.float16).view(np.uint8)
    nibbles = np.arange(16, dtype=np.uint8) | np.arange(16, dtype=np.uint8)[::-1] << 4
    ramp = np.concatenate([np.arange(16), np.arange(16)[::-1]])
    q4_1 = dequantize(QUANT_TYPES["Q4_1"], np.concatenate([halves, nibbles]), (32,))
    assert q4_1.tolist() == (0.5 * ramp - 2).tolist()
    q4_0 = dequantize(QUANT_TYPES["Q4_0"], np.concatenate([halves[:2], nibbles]), (32,))
    assert q4_0.tolist() == (0.5 * (ramp - 8)).tolist()
    signed = np.arange(-16, 16, dtype=np.int8)
    q8_0 = dequantize(QUANT_TYPES["Q8_0"], np.concatenate([halves[2:], signed.view(np.uint8)]), (32,))
    assert q8_0.tolist() == (-2.0 * signed).tolist()


@pytest.mark.parametrize("name", sorted(QUANT_TYPES))
def test_results_do_not_depend_on_how_much_is_converted_at_once(name):
    stored = random_rows(name, rows=700, seed=2)
    rows, columns = shape_of(name, stored)
    whole = dequantize(QUANT_TYPES[name], stored, (rows, columns))
    for row in (0, 1, 227, 228, rows - 1):
        single = dequantize(QUANT_TYPES[name], stored[row], (columns,))
        assert_same_bits(single, whole[row])


@pytest.mark.parametrize("name", sorted(QUANT_TYPES))
def test_read_only_views_and_other_shapes(name):
    stored = random_rows(name, rows=6, seed=3)
    rows, columns = shape_of(name, stored)
    expected = oracle(name, stored)
    from_view = dequantize(QUANT_TYPES[name], memoryview(stored.tobytes()), (2, 3, columns))
    assert_same_bits(from_view, expected.reshape(2, 3, columns))
    assert_same_bits(dequantize(QUANT_TYPES[name], stored.ravel(), (rows * columns,)), expected.ravel())


def test_f32_is_not_copied():
    stored = np.arange(8, dtype=np.float32).view(np.uint8)
    assert np.shares_memory(dequantize(QUANT_TYPES["F32"], stored, (2, 4)), stored)


@pytest.mark.parametrize(
    ("name", "num_bytes", "shape"),
    [("Q8_0", 34, (64,)), ("Q8_0", 35, (32,)), ("Q4_1", 40, (4, 16)), ("F32", 4, ()), ("Q6_K", 210, (255,))],
)
def test_bytes_that_do_not_fit_the_shape(name, num_bytes, shape):
    with pytest.raises(EngineError, match=f"{num_bytes} bytes of {name} are no tensor of shape"):
        dequantize(QUANT_TYPES[name], np.zeros(num_bytes, np.uint8), shape)
