"""Stored formats that no kernel knows, as the nearest one that holds the same values.

IQ4_NL becomes Q8_0 and Q3_K Q6_K, without any loss. Q2_K, IQ4_XS (their scales fit no other format) and F64
become F32, rounded once. Layouts: the GGML/GGUF format of each type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.kernels.tensor import QuantTensor

Bytes = NDArray[np.uint8]

_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""The code book of IQ4_NL and IQ4_XS."""


def converted(tensor: QuantTensor) -> QuantTensor:
    """The tensor itself, or, if its type is one of `CONVERTED_TYPES`, a copy in one of `QUANT_TYPES`."""
    target = _TARGETS.get(tensor.quant_type.name)
    if target is None:
        return tensor
    name, convert = target
    blocks = tensor.data.reshape(-1, tensor.quant_type.type_size)
    data = np.ascontiguousarray(convert(blocks)).view(np.uint8).reshape(-1)
    return replace(tensor, quant_type=QUANT_TYPES[name], data=data, is_mapped=False)


def computed_type(stored: str) -> str:
    """The name of the type that tensors stored in this one are computed with."""
    target = _TARGETS.get(stored)
    return stored if target is None else target[0]


def _halves(blocks: Bytes, at: int) -> NDArray[np.float32]:
    """The fp16 at byte `at` of every block, [blocks, 1]."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _iq4_nl_as_q8_0(blocks: Bytes) -> Bytes:
    values = _IQ4_VALUES[np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)]
    return np.concatenate([blocks[:, :2], values.view(np.uint8)], axis=1)


def _two_bits(qs: Bytes) -> Bytes:
    """qs[blocks, 64] → the 256 quants: per half of 32 bytes four groups of 32, two bits of each byte."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    quants: Bytes = (qs.reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)).reshape(-1, 256)
    return quants


def _q3_k_as_q6_k(blocks: Bytes) -> Bytes:
    high_mask, packed_scales = blocks[:, :32], blocks[:, 96:108]
    high = high_mask[:, None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    # q in −4…3; Q6_K stores it with an offset of 32.
    quants = _two_bits(blocks[:, 32:96]) + (high << 2).reshape(-1, 256) + 28
    low = np.concatenate([packed_scales[:, :8] & 15, packed_scales[:, :8] >> 4], axis=1)
    top = packed_scales[:, None, 8:] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    scales = (low | top.reshape(-1, 16) << 4).view(np.int8) - np.int8(32)
    groups = quants.reshape(-1, 2, 4, 32)  # halves of four groups: see BlockQ6_K
    nibbles = (groups[:, :, :2] & 15) | (groups[:, :, 2:] & 15) << 4
    pairs = groups >> 4
    bits = pairs[:, :, 0] | pairs[:, :, 1] << 2 | pairs[:, :, 2] << 4 | pairs[:, :, 3] << 6
    count = len(blocks)
    parts = [nibbles.reshape(count, 128), bits.reshape(count, 64), scales.view(np.uint8), blocks[:, 108:]]
    return np.concatenate(parts, axis=1)


def _q2_k_as_f32(blocks: Bytes) -> NDArray[np.float32]:
    scales, mins = (blocks[:, :16] & 15).astype(np.float32), (blocks[:, :16] >> 4).astype(np.float32)
    quants = _two_bits(blocks[:, 16:80]).reshape(-1, 16, 16).astype(np.float32)
    scale, minimum = _halves(blocks, 80) * scales, _halves(blocks, 82) * mins
    return scale[..., None] * quants - minimum[..., None]


def _iq4_xs_as_f32(blocks: Bytes) -> NDArray[np.float32]:
    high = blocks[:, 2:4].copy().view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15
    scales = (low.reshape(-1, 8) | high << 4).astype(np.float32) - 32
    nibbles = blocks[:, 8:].reshape(-1, 8, 16)
    values = _IQ4_VALUES[np.concatenate([nibbles & 15, nibbles >> 4], axis=2)].astype(np.float32)
    weights: NDArray[np.float32] = (_halves(blocks, 0) * scales)[..., None] * values
    return weights


def _f64_as_f32(blocks: Bytes) -> NDArray[np.float32]:
    values: NDArray[np.float32] = np.ascontiguousarray(blocks).view(np.float64).astype(np.float32)
    return values


_TARGETS: Mapping[str, tuple[str, Callable[[Bytes], NDArray[np.uint8] | NDArray[np.float32]]]] = (
    MappingProxyType(
        {
            "IQ4_NL": ("Q8_0", _iq4_nl_as_q8_0),
            "Q3_K": ("Q6_K", _q3_k_as_q6_k),
            "Q2_K": ("F32", _q2_k_as_f32),
            "IQ4_XS": ("F32", _iq4_xs_as_f32),
            "F64": ("F32", _f64_as_f32),
        }
    )
)
