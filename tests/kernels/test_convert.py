from __future__ import annotations

import gguf
import numpy as np
import pytest

from ridgeline.formats.quants import CONVERTED_TYPES, QUANT_TYPES
from ridgeline.kernels.convert import computed_type, converted
from ridgeline.kernels.dequantize import dequantize
from ridgeline.kernels.tensor import QuantTensor


def random_tensor(name: str, rows: int = 5, cols: int = 512) -> QuantTensor:
    kind = CONVERTED_TYPES[name]
    rng = np.random.default_rng(kind.type_id)
    if name == "F64":
        return QuantTensor("w", kind, (rows, cols), rng.normal(0, 1, rows * cols).view(np.uint8))
    data = rng.integers(0, 256, (rows * cols // kind.quant_block_size, kind.type_size), np.uint8)
    for at in {"Q2_K": (80, 82), "Q3_K": (108,)}.get(name, (0,)):
        scales = rng.normal(0, 1, len(data)).astype(np.float16)
        data[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return QuantTensor("w", kind, (rows, cols), data.reshape(-1), is_mapped=True)


@pytest.mark.parametrize("name", sorted(CONVERTED_TYPES))
def test_values_are_the_stored_ones(name):
    stored = random_tensor(name)
    result = converted(stored)
    assert result.quant_type is QUANT_TYPES[result.quant_type.name]
    assert computed_type(name) == result.quant_type.name
    assert result.shape == stored.shape
    assert not result.is_mapped  # its memory is no file's: giving its pages back would lose it
    if name == "F64":
        expected = stored.data.view(np.float64).astype(np.float32).reshape(stored.shape)
    else:
        rows = stored.data.reshape(stored.shape[0], -1)
        expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name])
    value = dequantize(result.quant_type, result.data, result.shape)
    np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("name", sorted(QUANT_TYPES))
def test_what_kernels_compute_with_stays(make_weight, name):
    weight = make_weight(name, 3, 256)
    assert converted(weight) is weight
    assert computed_type(name) == name
