"""The quant types of GGML tensors: a pure table of ids and sizes.

Source: the `ggml_type` enumeration and block layouts of the GGML library. Values are stored in quant
blocks of `quant_block_size` elements that take `type_size` bytes; plain floats are blocks of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class QuantType:
    """How a tensor's elements are stored: `quant_block_size` elements in each `type_size` bytes."""

    type_id: int
    name: str
    quant_block_size: int
    type_size: int

    def size_bytes(self, num_elements: int) -> int:
        """Bytes that `num_elements` take; raises ValueError where they are not whole quant blocks."""
        num_quant_blocks, rest = divmod(num_elements, self.quant_block_size)
        if rest:
            raise ValueError(
                f"{num_elements} elements are no multiple of {self.name}'s quant block, "
                f"{self.quant_block_size}"
            )
        return num_quant_blocks * self.type_size


_SUPPORTED = (
    QuantType(0, "F32", 1, 4),
    QuantType(1, "F16", 1, 2),
    QuantType(30, "BF16", 1, 2),
    QuantType(2, "Q4_0", 32, 18),
    QuantType(3, "Q4_1", 32, 20),
    QuantType(6, "Q5_0", 32, 22),
    QuantType(7, "Q5_1", 32, 24),
    QuantType(8, "Q8_0", 32, 34),
    QuantType(12, "Q4_K", 256, 144),
    QuantType(13, "Q5_K", 256, 176),
    QuantType(14, "Q6_K", 256, 210),
)

QUANT_TYPES: Mapping[str, QuantType] = MappingProxyType({each.name: each for each in _SUPPORTED})
"""The quant types that ridgeline computes with, by name."""

CONVERTED_TYPES: Mapping[str, QuantType] = MappingProxyType(
    {
        each.name: each
        for each in (
            QuantType(28, "F64", 1, 8),
            QuantType(10, "Q2_K", 256, 84),
            QuantType(11, "Q3_K", 256, 110),
            QuantType(20, "IQ4_NL", 32, 18),
            QuantType(23, "IQ4_XS", 256, 136),
        )
    }
)
"""The quant types that ridgeline reads and turns into one of `QUANT_TYPES` at load, by name."""

UNSUPPORTED_TYPE_NAMES: Mapping[int, str] = MappingProxyType(
    {
        4: "Q4_2",
        5: "Q4_3",
        9: "Q8_1",
        15: "Q8_K",
        16: "IQ2_XXS",
        17: "IQ2_XS",
        18: "IQ3_XXS",
        19: "IQ1_S",
        21: "IQ3_S",
        22: "IQ2_S",
        24: "I8",
        25: "I16",
        26: "I32",
        27: "I64",
        29: "IQ1_M",
        31: "Q4_0_4_4",
        32: "Q4_0_4_8",
        33: "Q4_0_8_8",
        34: "TQ1_0",
        35: "TQ2_0",
        36: "IQ4_NL_4_4",
        37: "IQ4_NL_4_8",
        38: "IQ4_NL_8_8",
        39: "MXFP4",
        40: "NVFP4",
        41: "Q1_0",
    }
)
"""Names, by type id, of the quant types that GGUF files may hold and ridgeline can't compute with."""

_BY_ID: Mapping[int, QuantType] = MappingProxyType(
    {each.type_id: each for each in (*_SUPPORTED, *CONVERTED_TYPES.values())}
)


def quant_type_by_id(type_id: int) -> QuantType | None:
    """The quant type with that GGML id, computed with or converted; None for others (`describe_type_id`)."""
    return _BY_ID.get(type_id)


def describe_type_id(type_id: int) -> str:
    """A GGML type id in words for messages: `IQ2_XXS (type 16)`, or `type 99` where nobody knows it."""
    supported = _BY_ID.get(type_id)
    name = supported.name if supported else UNSUPPORTED_TYPE_NAMES.get(type_id)
    return f"{name} (type {type_id})" if name else f"type {type_id}"
