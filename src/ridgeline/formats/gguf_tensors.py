"""The tensor table of a GGUF file: names, shapes, quant types and where the data lie."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.formats.gguf_cursor import ByteCursor, quote
from ridgeline.formats.quants import (
    CONVERTED_TYPES,
    QUANT_TYPES,
    QuantType,
    describe_type_id,
    quant_type_by_id,
)

_MAX_DIMENSIONS = 4
_MAX_NAME_BYTES = (1 << 16) - 1
# Name length, one byte of name, n_dims, one dimension, type, offset.
_MIN_ENTRY_BYTES = 8 + 1 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` row-major (the file's dimensions reversed), `offset` from the file's first byte."""

    name: str
    shape: tuple[int, ...]
    quant_type: QuantType
    offset: int
    size_bytes: int


def read_tensor_table(cursor: ByteCursor, num_tensors: int, *, alignment: int) -> dict[str, TensorInfo]:
    """The `num_tensors` entries at the cursor, checked against each other and the file's size."""
    cursor.require(num_tensors * _MIN_ENTRY_BYTES, f"the table of {num_tensors:,} tensors")
    entries: dict[str, TensorInfo] = {}
    for index in range(num_tensors):
        start = cursor.offset
        entry = _read_entry(cursor, index, alignment)
        if entry.name in entries:
            raise cursor.error(f"corrupt: tensor {quote(entry.name)} at byte {start:,} is there twice")
        entries[entry.name] = entry
    data_start = -(-cursor.offset // alignment) * alignment
    tensors = {name: _place(entry, data_start) for name, entry in entries.items()}
    _check_extents(cursor, tensors)
    return tensors


def _read_entry(cursor: ByteCursor, index: int, alignment: int) -> TensorInfo:
    """An entry whose `offset` still counts from the start of the tensor data."""
    name = cursor.read_string(f"the name of tensor {index}", max_bytes=_MAX_NAME_BYTES)
    what = f"tensor {quote(name)}"
    shape = _read_shape(cursor, what)
    quant_type = _read_quant_type(cursor, what)
    row_length = shape[-1]
    if row_length % quant_type.quant_block_size:
        raise cursor.error(
            f"corrupt: {what} has rows of {row_length:,} elements, no multiple of {quant_type.name}'s "
            f"quant block of {quant_type.quant_block_size}"
        )
    start = cursor.offset
    offset = cursor.read_u64(f"the offset of {what}")
    if offset % alignment:
        raise cursor.error(
            f"corrupt: the offset {offset:,} of {what} (at byte {start:,}) is not aligned to {alignment}"
        )
    return TensorInfo(name, shape, quant_type, offset, quant_type.size_bytes(math.prod(shape)))


def _read_shape(cursor: ByteCursor, what: str) -> tuple[int, ...]:
    start = cursor.offset
    num_dimensions = cursor.read_u32(f"the number of dimensions of {what}")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise cursor.error(
            f"corrupt: {what} at byte {start:,} has {num_dimensions:,} dimensions; "
            f"1 to {_MAX_DIMENSIONS} are possible"
        )
    dimensions = [cursor.read_u64(f"the dimensions of {what}") for _ in range(num_dimensions)]
    if 0 in dimensions:
        raise cursor.error(
            f"corrupt: dimension {dimensions.index(0)} of {what} is 0 (its table entry is at byte {start:,})"
        )
    return tuple(reversed(dimensions))


def _read_quant_type(cursor: ByteCursor, what: str) -> QuantType:
    start = cursor.offset
    type_id = cursor.read_u32(f"the type of {what}")
    quant_type = quant_type_by_id(type_id)
    if quant_type is None:
        raise cursor.error(
            f"{what} is stored as {describe_type_id(type_id)} at byte {start:,}, which is not supported; "
            f"supported are {', '.join((*QUANT_TYPES, *CONVERTED_TYPES))}",
            "use a file in one of these types, or download it again if it is corrupt (`ridgeline pull NAME`)",
        )
    return quant_type


def _place(entry: TensorInfo, data_start: int) -> TensorInfo:
    return TensorInfo(entry.name, entry.shape, entry.quant_type, data_start + entry.offset, entry.size_bytes)


def _check_extents(cursor: ByteCursor, tensors: Mapping[str, TensorInfo]) -> None:
    """Each tensor lies within the file and shares no byte with another."""
    end_before, name_before = 0, ""
    for info in sorted(tensors.values(), key=lambda each: each.offset):
        what = f"tensor {quote(info.name)}"
        if info.offset < end_before:
            raise cursor.error(
                f"corrupt: {what} at byte {info.offset:,} overlaps tensor {quote(name_before)}, "
                f"which ends at byte {end_before:,}"
            )
        cursor.offset = info.offset
        cursor.require(info.size_bytes, what)
        end_before, name_before = info.offset + info.size_bytes, info.name
