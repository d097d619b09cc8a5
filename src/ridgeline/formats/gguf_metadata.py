"""GGUF metadata: scanned first, allocating nothing that it claims; decoded once the file is known whole."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from ridgeline.errors import ModelFileError
from ridgeline.formats.gguf_cursor import ByteCursor, quote

MetadataValue: TypeAlias = "bool | int | float | str | list[MetadataValue]"
"""What a metadata key can hold, in Python's own types."""

DEFAULT_ALIGNMENT = 32
"""Bytes; what a file that does not say uses."""

_ALIGNMENT_KEY = "general.alignment"
_MAX_ALIGNMENT = 1 << 16

_BOOL, _STRING, _ARRAY = 7, 8, 9
# struct's code for each scalar type id of the specification.
_SCALAR_CODES: Mapping[int, str] = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d"}
)
_INTEGER_CODES = frozenset("BbHhIiQq")
_SCALAR_SIZES: Mapping[int, int] = MappingProxyType(
    {type_id: struct.calcsize(f"<{code}") for type_id, code in _SCALAR_CODES.items()}
)
# The fewest bytes one element can take: a string is at least its length, an array its type and length.
_MIN_SIZES: Mapping[int, int] = MappingProxyType({**_SCALAR_SIZES, _STRING: 8, _ARRAY: 12})
_MIN_ENTRY_BYTES = 8 + 1 + 4 + 1

# Far above any vocabulary (the largest hold a million merges); they bound the time a corrupt count can take.
_MAX_ARRAY_ELEMENTS = 1 << 22
_MAX_NESTED_ARRAYS = 1 << 16
_MAX_DEPTH = 8
_MAX_KEY_BYTES = (1 << 16) - 1
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class ValueSpan:
    """Where a checked metadata value lies: its type id and the byte at which it starts."""

    value_type: int
    offset: int


def scan_metadata(cursor: ByteCursor, num_metadata: int) -> dict[str, ValueSpan]:
    """Walks `num_metadata` entries and checks that all their bytes are there; key → where its value lies."""
    cursor.require(num_metadata * _MIN_ENTRY_BYTES, f"the table of {num_metadata:,} metadata entries")
    scan = _Scan(cursor)
    spans: dict[str, ValueSpan] = {}
    for index in range(num_metadata):
        start = cursor.offset
        key = cursor.read_string(f"metadata key {index}", max_bytes=_MAX_KEY_BYTES)
        what = f"metadata key {quote(key)}"
        if key in spans:
            raise cursor.error(f"corrupt: {what} at byte {start:,} is there twice")
        value_type = cursor.read_u32(f"the type of {what}")
        spans[key] = ValueSpan(value_type, cursor.offset)
        scan.skip_value(value_type, what)
    return spans


def read_alignment(cursor: ByteCursor, spans: Mapping[str, ValueSpan]) -> int:
    """`general.alignment` in bytes, a multiple of 8 as the specification asks; 32 where there is none."""
    span = spans.get(_ALIGNMENT_KEY)
    if span is None:
        return DEFAULT_ALIGNMENT
    if _SCALAR_CODES.get(span.value_type) not in _INTEGER_CODES or span.value_type == _BOOL:
        raise cursor.error(f"corrupt: {_ALIGNMENT_KEY} at byte {span.offset:,} is no integer")
    alignment = _decode_scalars(cursor, span, 1)[0]
    if not (isinstance(alignment, int) and 8 <= alignment <= _MAX_ALIGNMENT and alignment % 8 == 0):
        raise cursor.error(
            f"corrupt: {_ALIGNMENT_KEY}={alignment} at byte {span.offset:,} is no multiple of 8 "
            f"from 8 to {_MAX_ALIGNMENT:,}"
        )
    return alignment


def decode_metadata(cursor: ByteCursor, spans: Mapping[str, ValueSpan]) -> dict[str, MetadataValue]:
    """The values at `spans`, which `scan_metadata` has checked; raises ModelFileError on invalid UTF-8."""
    metadata: dict[str, MetadataValue] = {}
    for key, span in spans.items():
        cursor.offset = span.offset
        metadata[key] = _decode_values(cursor, span.value_type, 1, f"metadata key {quote(key)}")[0]
    return metadata


class _Scan:
    """Skips values and counts what they would cost, so that a corrupt count ends early."""

    def __init__(self, cursor: ByteCursor) -> None:
        self._cursor = cursor
        self._elements_left = _MAX_ARRAY_ELEMENTS
        self._nested_arrays_left = _MAX_NESTED_ARRAYS

    def skip_value(self, value_type: int, what: str) -> None:
        """Moves the cursor past one value of that type."""
        if value_type not in _MIN_SIZES:
            raise self._unknown_type(value_type, what)
        self._skip_values(value_type, 1, what, depth=0)

    def _skip_values(self, value_type: int, count: int, what: str, *, depth: int) -> None:
        if value_type == _STRING:
            self._skip_strings(count, what)
        elif value_type == _ARRAY:
            for _ in range(count):
                self._skip_array(what, depth=depth + 1)
        else:
            self._skip_scalars(value_type, count, what)

    def _skip_array(self, what: str, *, depth: int) -> None:
        cursor = self._cursor
        start = cursor.offset
        if depth > _MAX_DEPTH:
            raise cursor.error(f"corrupt: {what} nests arrays deeper than {_MAX_DEPTH} at byte {start:,}")
        element_type = cursor.read_u32(f"the element type of {what}")
        if element_type not in _MIN_SIZES:
            raise self._unknown_type(element_type, what)
        count = cursor.read_u64(f"the length of {what}")
        cursor.require(count * _MIN_SIZES[element_type], f"{what}, an array of {count:,}")
        self._elements_left -= count
        if element_type == _ARRAY:
            self._nested_arrays_left -= count
        if self._elements_left < 0 or self._nested_arrays_left < 0:
            raise cursor.error(
                f"corrupt: {what} at byte {start:,} is an array of {count:,}, more than any model needs"
            )
        self._skip_values(element_type, count, what, depth=depth)

    def _skip_scalars(self, value_type: int, count: int, what: str) -> None:
        cursor = self._cursor
        start = cursor.offset
        cursor.skip(count * _SCALAR_SIZES[value_type], what)
        # A bool is stored as one byte that is 0 or 1.
        if value_type == _BOOL and cursor.buffer[start : start + count].strip(b"\x00\x01"):
            raise cursor.error(f"corrupt: {what} at byte {start:,} holds a bool that is neither 0 nor 1")

    def _skip_strings(self, count: int, what: str) -> None:
        # The hot loop of opening a file: a vocabulary and its merges are some 100,000 strings.
        cursor = self._cursor
        buffer, size, unpack = cursor.buffer, cursor.size, _U64.unpack_from
        offset = cursor.offset
        last_start = size - 8
        for index in range(count):
            if offset > last_start:
                cursor.offset = offset
                cursor.require(8, f"the length of string {index:,} of {what}")
            start = offset + 8
            offset = start + unpack(buffer, offset)[0]
            if offset > size:
                cursor.offset = start
                cursor.require(offset - start, f"string {index:,} of {what}")
        cursor.offset = offset

    def _unknown_type(self, value_type: int, what: str) -> ModelFileError:
        return self._cursor.error(
            f"corrupt: {what} has value type {value_type} before byte {self._cursor.offset:,}; "
            f"types are 0 to {max(_MIN_SIZES)}"
        )


def _decode_values(cursor: ByteCursor, value_type: int, count: int, what: str) -> list[MetadataValue]:
    if value_type == _STRING:
        return _decode_strings(cursor, count, what)
    if value_type == _ARRAY:
        return [_decode_array(cursor, what) for _ in range(count)]
    values = _decode_scalars(cursor, ValueSpan(value_type, cursor.offset), count)
    cursor.offset += count * _SCALAR_SIZES[value_type]
    return values


def _decode_array(cursor: ByteCursor, what: str) -> list[MetadataValue]:
    element_type = cursor.read_u32(what)
    count = cursor.read_u64(what)
    return _decode_values(cursor, element_type, count, what)


def _decode_scalars(cursor: ByteCursor, span: ValueSpan, count: int) -> list[MetadataValue]:
    code = _SCALAR_CODES[span.value_type]
    values = struct.unpack_from(f"<{count}{code}", cursor.buffer, span.offset)
    return [each == 1 for each in values] if span.value_type == _BOOL else list(values)


def _decode_strings(cursor: ByteCursor, count: int, what: str) -> list[MetadataValue]:
    buffer, unpack = cursor.buffer, _U64.unpack_from
    offset = cursor.offset
    strings: list[MetadataValue] = []
    try:
        for _ in range(count):
            start = offset + 8
            offset = start + unpack(buffer, offset)[0]
            strings.append(str(buffer[start:offset], "utf-8"))
    except UnicodeDecodeError as fault:
        raise cursor.error(
            f"corrupt: string {len(strings):,} of {what} at byte {start:,} is not UTF-8 ({fault.reason})"
        ) from None
    cursor.offset = offset
    return strings
