"""Stored weights to float32, in NumPy: the definition that the native kernels are tested against.

Each quant type is a record of its quant block, field by field as it lies in the file, and a function from
such records to values. Source: the block layouts and dequantisation formulas of the GGML library; the order
of the float32 operations is part of them, so results are equal bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import EngineError
from ridgeline.formats.quants import QuantType

_Records: TypeAlias = NDArray[Any]
_Bytes: TypeAlias = NDArray[np.uint8]
_Floats: TypeAlias = NDArray[np.float32]

# Elements converted at a time: the temporaries stay in cache and small beside the result.
_CHUNK_ELEMENTS = 1 << 17


@dataclass(frozen=True, slots=True)
class _Layout:
    """A quant block's record type, and the function from records[n] to values[n, quant_block_size]."""

    record: np.dtype[Any]
    to_float: Callable[[_Records], _Floats]


def dequantize(
    quant_type: QuantType, data: NDArray[np.uint8] | memoryview, shape: Sequence[int]
) -> NDArray[np.float32]:
    """The float32 values, in `shape`, of the stored bytes `data` (row-major, rows of whole quant blocks).

    F32 comes back as a view of `data`, everything else as a new array. Raises EngineError where `data` is
    not exactly as long as `shape` needs.
    """
    stored = np.frombuffer(data, np.uint8)
    num_elements = math.prod(shape)
    if (
        not shape
        or shape[-1] % quant_type.quant_block_size
        or stored.size != quant_type.size_bytes(num_elements)
    ):
        raise EngineError(
            f"dequantize: {stored.size} bytes of {quant_type.name} are no tensor of shape {tuple(shape)}"
        )
    if quant_type.name == "F32":
        return stored.view("<f4").reshape(shape)
    layout = _LAYOUTS[quant_type.name]
    records = stored.view(layout.record)
    values = np.empty((records.size, quant_type.quant_block_size), np.float32)
    step = _CHUNK_ELEMENTS // quant_type.quant_block_size
    # A corrupt scale may be infinite; its products are then NaN, which is the answer, not a fault.
    with np.errstate(invalid="ignore"):
        for start in range(0, records.size, step):
            values[start : start + step] = layout.to_float(records[start : start + step])
    return values.reshape(shape)


def _column(field: NDArray[Any]) -> _Floats:
    """A scalar field of each record as float32[n, 1], to multiply the block's values with."""
    return field.astype(np.float32)[:, np.newaxis]


def _bit_planes(packed: _Bytes, num_bits: int, run: int) -> _Bytes:
    """packed[n, bytes] split into fields of `num_bits`, lowest first: values[n, bytes * 8 / num_bits].

    Runs of `run` bytes hold the low fields of `run` elements, then the next fields of the next `run`.
    """
    shifts = np.arange(0, 8, num_bits, dtype=np.uint8)[:, np.newaxis]
    runs = packed.reshape(len(packed), -1, 1, run)
    planes: _Bytes = (runs >> shifts) & np.uint8((1 << num_bits) - 1)
    return planes.reshape(len(packed), -1)


def _fifth_bits(packed: _Bytes) -> _Bytes:
    """packed[n, 4] → the values[n, 32] 0 or 16 of its bits, element 0 in the lowest."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _scales_and_mins(packed: _Bytes) -> tuple[_Floats, _Floats]:
    """packed[n, 12] → eight 6-bit scales and eight 6-bit minima, float32[n, 8, 1] each.

    Bytes 0–3 and 4–7 hold scales and minima 0–3 in their low 6 bits and, in the upper 2, the upper 2 bits of
    scales and minima 4–7, whose low 4 bits are the low and high nibbles of bytes 8–11.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    mins = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return scales.astype(np.float32)[:, :, np.newaxis], mins.astype(np.float32)[:, :, np.newaxis]


def _scale_groups(records: _Records, quants: _Bytes) -> _Floats:
    """Values of a K-quant block: quants[n, 256] in groups of 32, each with its own scale and minimum."""
    scales, mins = _scales_and_mins(records["scales"])
    groups = quants.reshape(-1, 8, 32).astype(np.float32)
    scale = _column(records["d"])[:, :, np.newaxis] * scales
    minimum = _column(records["dmin"])[:, :, np.newaxis] * mins
    values: _Floats = scale * groups - minimum
    return values.reshape(-1, 256)


def _from_f16(records: _Records) -> _Floats:
    return _column(records["x"])


def _from_bf16(records: _Records) -> _Floats:
    # bfloat16 is the upper half of a float32.
    bits = records["x"].astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32)[:, np.newaxis]


def _from_q4_0(records: _Records) -> _Floats:
    quants = _bit_planes(records["qs"], 4, 16).astype(np.int8) - np.int8(8)
    return _column(records["d"]) * quants.astype(np.float32)


def _from_q4_1(records: _Records) -> _Floats:
    quants = _bit_planes(records["qs"], 4, 16).astype(np.float32)
    return _column(records["d"]) * quants + _column(records["m"])


def _from_q5_0(records: _Records) -> _Floats:
    quants = _bit_planes(records["qs"], 4, 16) | _fifth_bits(records["qh"])
    return _column(records["d"]) * (quants.astype(np.int8) - np.int8(16)).astype(np.float32)


def _from_q5_1(records: _Records) -> _Floats:
    quants = _bit_planes(records["qs"], 4, 16) | _fifth_bits(records["qh"])
    return _column(records["d"]) * quants.astype(np.float32) + _column(records["m"])


def _from_q8_0(records: _Records) -> _Floats:
    return _column(records["d"]) * records["qs"].astype(np.float32)


def _from_q4_k(records: _Records) -> _Floats:
    return _scale_groups(records, _bit_planes(records["qs"], 4, 32))


def _from_q5_k(records: _Records) -> _Floats:
    high = _bit_planes(records["qh"], 1, 32) << np.uint8(4)
    return _scale_groups(records, _bit_planes(records["qs"], 4, 32) | high)


def _from_q6_k(records: _Records) -> _Floats:
    high = _bit_planes(records["qh"], 2, 32) << np.uint8(4)
    quants = (_bit_planes(records["ql"], 4, 64) | high).astype(np.int8) - np.int8(32)
    scales = _column(records["d"]) * records["scales"].astype(np.float32)
    values: _Floats = scales[:, :, np.newaxis] * quants.reshape(-1, 16, 16).astype(np.float32)
    return values.reshape(-1, 256)


_LAYOUTS: Mapping[str, _Layout] = MappingProxyType(
    {
        "F16": _Layout(np.dtype([("x", "<f2")]), _from_f16),
        "BF16": _Layout(np.dtype([("x", "<u2")]), _from_bf16),
        "Q4_0": _Layout(np.dtype([("d", "<f2"), ("qs", "u1", 16)]), _from_q4_0),
        "Q4_1": _Layout(np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)]), _from_q4_1),
        "Q5_0": _Layout(np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)]), _from_q5_0),
        "Q5_1": _Layout(
            np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)]), _from_q5_1
        ),
        "Q8_0": _Layout(np.dtype([("d", "<f2"), ("qs", "i1", 32)]), _from_q8_0),
        "Q4_K": _Layout(
            np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)]), _from_q4_k
        ),
        "Q5_K": _Layout(
            np.dtype(
                [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
            ),
            _from_q5_k,
        ),
        "Q6_K": _Layout(
            np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")]), _from_q6_k
        ),
    }
)
