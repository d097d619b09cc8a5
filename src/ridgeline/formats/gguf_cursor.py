"""ByteCursor: reads a mapped GGUF file front to back and never past its end."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from ridgeline.errors import ModelFileError

DOWNLOAD_AGAIN = "download it again (`ridgeline pull NAME`)"
"""The remedy for a file that is not what its author wrote."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# No file is larger than this, so a length above it was never true.
_ABSURD_BYTES = 1 << 44
_QUOTED_LENGTH = 80


def quote(name: str) -> str:
    """`name` as one printable line of at most 80 characters or so, for a message."""
    return repr(name if len(name) <= _QUOTED_LENGTH else f"{name[: _QUOTED_LENGTH - 1]}…")


class ByteCursor:
    """A position in a mapped little-endian file; every read is checked against the file's end first.

    `what` arguments name, for the message, the thing that is being read.
    """

    __slots__ = ("buffer", "offset", "path", "size")

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.size = len(buffer)
        self.offset = 0

    def error(self, problem: str, remedy: str = DOWNLOAD_AGAIN) -> ModelFileError:
        """The error to raise for `problem`, with this file's path."""
        return ModelFileError(self.path, problem, remedy)

    def require(self, num_bytes: int, what: str) -> None:
        """Raises ModelFileError where fewer than `num_bytes` are left; allocates nothing."""
        left = self.size - self.offset
        if num_bytes <= left:
            return
        state = "corrupt" if num_bytes > _ABSURD_BYTES else "truncated"
        raise self.error(
            f"{state}: {what} at byte {self.offset:,} needs {num_bytes:,} bytes, but only {max(left, 0):,} "
            f"are left of the file's {self.size:,}"
        )

    def skip(self, num_bytes: int, what: str) -> None:
        """Moves past `num_bytes` that must be there."""
        self.require(num_bytes, what)
        self.offset += num_bytes

    def read_u32(self, what: str) -> int:
        """An unsigned 32-bit integer."""
        return self._read(_U32, what)

    def read_u64(self, what: str) -> int:
        """An unsigned 64-bit integer."""
        return self._read(_U64, what)

    def read_string(self, what: str, *, max_bytes: int) -> str:
        """A length-prefixed UTF-8 string of 1 to `max_bytes` bytes."""
        start = self.offset
        length = self.read_u64(f"the length of {what}")
        if not 1 <= length <= max_bytes:
            raise self.error(
                f"corrupt: {what} at byte {start:,} claims {length:,} bytes; 1 to {max_bytes:,} are possible"
            )
        self.require(length, what)
        raw = self.buffer[self.offset : self.offset + length]
        self.offset += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as fault:
            raise self.error(f"corrupt: {what} at byte {start:,} is not UTF-8 ({fault.reason})") from None

    def _read(self, layout: struct.Struct, what: str) -> int:
        self.require(layout.size, what)
        value: int = layout.unpack_from(self.buffer, self.offset)[0]
        self.offset += layout.size
        return value
