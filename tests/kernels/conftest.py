from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.kernels import ops
from ridgeline.kernels.tensor import QuantTensor

# Largest normalised mean square error of a native kernel against its NumPy twin, by (op, quant type). The
# twins of products sum in float64, so what is left is the rounding of float32 sums.
TOLERANCES: dict[tuple[str, str | None], float] = {
    **{("matmul", name): 1e-13 for name in QUANT_TYPES},
    **{("dequantize_rows", name): 0.0 for name in QUANT_TYPES},
    ("quantize_activations", None): 0.0,
    ("rms_norm", None): 1e-13,
    ("rope_tables", None): 1e-15,
    ("rope", None): 1e-14,
    ("swiglu", None): 1e-13,
    ("attention", None): 1e-10,
}

# Where a quant block holds its fp16 scales, and how large they are beside the spread of the weights.
HALF_FIELDS: dict[str, tuple[tuple[int, float], ...]] = {
    "Q4_0": ((0, 1 / 4.6),),
    "Q4_1": ((0, 1 / 4.6), (2, -8 / 4.6)),
    "Q5_0": ((0, 1 / 9.2),),
    "Q5_1": ((0, 1 / 9.2), (2, -16 / 9.2)),
    "Q8_0": ((0, 1 / 74),),
    "Q4_K": ((0, 1 / 250), (2, 1 / 31)),
    "Q5_K": ((0, 1 / 500), (2, 1 / 31)),
    "Q6_K": ((208, 1 / 1400),),
}

MakeWeight = Callable[..., QuantTensor]


def nmse(value: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    error = np.asarray(value, np.float64) - expected
    scale = np.square(expected, dtype=np.float64).sum()
    return float(np.square(error).sum() / scale) if scale else float(np.square(error).sum())


@pytest.fixture
def assert_close() -> Callable[..., None]:
    """Compares with a twin by the tolerance of (op, quant type)."""

    def check(
        op: str, value: NDArray[np.float32], expected: NDArray[np.float32], *, quant_type: str | None = None
    ):
        assert value.shape == expected.shape
        assert value.dtype == expected.dtype
        assert np.isfinite(value).all()
        assert nmse(value, expected) <= TOLERANCES[op, quant_type]

    return check


@pytest.fixture
def make_weight() -> MakeWeight:
    """Random stored weights: random bytes under scales that give about the standard deviation asked for."""

    def make(quant_type: str, rows: int, cols: int, *, seed: int = 0, std: float = 1.0) -> QuantTensor:
        rng = np.random.default_rng([seed, rows, cols])
        kind = QUANT_TYPES[quant_type]
        if kind.quant_block_size == 1:
            values = rng.normal(0, std, (rows, cols)).astype(np.float32)
            return QuantTensor("w", kind, (rows, cols), _float_bytes(quant_type, values))
        num_blocks = rows * cols // kind.quant_block_size
        blocks = rng.integers(0, 256, (num_blocks, kind.type_size), np.uint8)
        for offset, share in HALF_FIELDS[quant_type]:
            scales = (std * share * rng.uniform(0.5, 1.5, num_blocks)).astype(np.float16)
            blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
        return QuantTensor("w", kind, (rows, cols), blocks.reshape(-1))

    return make


def _float_bytes(quant_type: str, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    if quant_type == "F32":
        return values.view(np.uint8).reshape(-1)
    if quant_type == "F16":
        return values.astype(np.float16).view(np.uint8).reshape(-1)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1)


@pytest.fixture(params=ops.available_isas())
def isa(request: pytest.FixtureRequest) -> str:
    """Every instruction set this machine has."""
    return request.param


@pytest.fixture(params=sorted(QUANT_TYPES))
def quant_type(request: pytest.FixtureRequest) -> str:
    """Every quant type."""
    return request.param


@pytest.fixture
def normal() -> Callable[..., NDArray[np.float32]]:
    """Normally distributed float32 of a shape."""

    def make(*shape: int, seed: int = 0, std: float = 1.0) -> NDArray[np.float32]:
        return np.random.default_rng([seed, *shape]).normal(0, std, shape).astype(np.float32)

    return make
