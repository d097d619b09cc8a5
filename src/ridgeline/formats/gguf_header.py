"""The first 24 bytes of a GGUF file, and what a file is instead when it is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.formats.gguf_cursor import DOWNLOAD_AGAIN, ByteCursor

_MAGIC = b"GGUF"
_HEADER_BYTES = 24
_READABLE_VERSIONS = (2, 3)
# Far above any model's; they bound the time and memory that a corrupt count can take.
_MAX_TENSORS = 1 << 16
_MAX_METADATA = 1 << 16
_CONVERT = "get or convert it as GGUF version 3 (`ridgeline pull NAME`)"


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """The format version and the two counts, neither of them believed yet."""

    version: int
    num_tensors: int
    num_metadata: int


@dataclass(frozen=True, slots=True)
class _OtherFormat:
    """A kind of file that is met where a GGUF file was expected."""

    matches: Callable[[bytes], bool]
    name: str
    remedy: str


def _starts_with(*prefixes: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.lstrip().lower().startswith(prefixes)


def _is_safetensors(head: bytes) -> bool:
    # The length of its JSON header, 8 bytes, then the JSON itself.
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32


_OTHER_FORMATS = (
    _OtherFormat(
        _starts_with(b"lmgg", b"fmgg", b"tjgg", b"algg", b"ggml", b"ggmf", b"ggjt", b"ggla"),
        "a GGML file from before GGUF",
        _CONVERT,
    ),
    _OtherFormat(
        _starts_with(b"version https://git-lfs"),
        "a git-lfs pointer, not the file itself",
        "fetch the real file with `git lfs pull`",
    ),
    _OtherFormat(
        _starts_with(b"<!doctype", b"<html", b"<?xml", b"<head"),
        "a web page, perhaps a server's error page",
        DOWNLOAD_AGAIN,
    ),
    _OtherFormat(_is_safetensors, "a safetensors file", _CONVERT),
    _OtherFormat(_starts_with(b"pk\x03\x04"), "a zip archive, perhaps a PyTorch checkpoint", _CONVERT),
    _OtherFormat(_starts_with(b"\x1f\x8b"), "a gzip archive", "unpack it first"),
    _OtherFormat(_starts_with(b"{"), "JSON text, perhaps a server's error", DOWNLOAD_AGAIN),
    _OtherFormat(lambda head: not any(head), "zeros: the download never filled it", DOWNLOAD_AGAIN),
)


def read_header(cursor: ByteCursor) -> GGUFHeader:
    """The header at the cursor; raises ModelFileError where it is not that of GGUF version 2 or 3."""
    _check_magic(cursor)
    cursor.require(_HEADER_BYTES, "the header")
    cursor.skip(len(_MAGIC), "the magic number")
    version = cursor.read_u32("the version")
    _check_version(cursor, version)
    return GGUFHeader(
        version=version,
        num_tensors=_read_count(cursor, "the number of tensors", _MAX_TENSORS),
        num_metadata=_read_count(cursor, "the number of metadata entries", _MAX_METADATA),
    )


def _read_count(cursor: ByteCursor, what: str, limit: int) -> int:
    start = cursor.offset
    count = cursor.read_u64(what)
    if count > limit:
        raise cursor.error(f"corrupt: {what} at byte {start} is {count:,}; no model has more than {limit:,}")
    return count


def _check_magic(cursor: ByteCursor) -> None:
    head = cursor.buffer[:64]
    magic = head[: len(_MAGIC)]
    if magic == _MAGIC:
        return
    if len(head) < len(_MAGIC):
        raise cursor.error(f"truncated: {len(head)} bytes are too few for any model file")
    for other in _OTHER_FORMATS:
        if other.matches(head):
            raise cursor.error(f"not a GGUF file but {other.name} (it begins with {magic!r})", other.remedy)
    raise cursor.error(f"not a GGUF file: it begins with {magic!r} instead of {_MAGIC!r}")


def _check_version(cursor: ByteCursor, version: int) -> None:
    if version in _READABLE_VERSIONS:
        return
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if 0 < swapped < 1 << 16:
        raise cursor.error(
            f"big-endian GGUF (the bytes of version {swapped}, at byte 4, are swapped); "
            "only little-endian can be read",
            "get the little-endian file",
        )
    readable = " and ".join(str(each) for each in _READABLE_VERSIONS)
    raise cursor.error(f"GGUF version {version} at byte 4 is not supported, only {readable} are", _CONVERT)
