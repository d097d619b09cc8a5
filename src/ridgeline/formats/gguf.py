"""GGUF files: memory-mapped, checked before use, read without copies.

Layout (versions 2 and 3 alike, little endian; source: the GGUF specification)::

    magic "GGUF" · version u32 · tensor count u64 · metadata count u64
    metadata   key string · value type u32 · value                      (gguf_metadata)
    tensors    name string · n_dims u32 · dims u64… · type u32 · offset u64   (gguf_tensors)
    padding to general.alignment (32 where the file does not say)
    tensor data, each tensor at its offset from here

`open_gguf` walks the whole structure without allocating anything that the file merely claims, and only
then decodes metadata: a broken file costs milliseconds and kilobytes.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

from ridgeline.errors import EngineError, ModelFileError
from ridgeline.formats.gguf_cursor import DOWNLOAD_AGAIN, ByteCursor, quote
from ridgeline.formats.gguf_header import read_header
from ridgeline.formats.gguf_metadata import (
    MetadataValue,
    decode_metadata,
    read_alignment,
    scan_metadata,
)
from ridgeline.formats.gguf_tensors import TensorInfo, read_tensor_table

__all__ = ["GGUFFile", "MetadataValue", "TensorInfo", "open_gguf"]


class GGUFFile:
    """An open GGUF file: its metadata and views of its tensors.

    `version` is 2 or 3; `alignment` in bytes; `metadata` maps keys to int, float, bool, str or (nested)
    lists of them; `tensors` maps names to `TensorInfo` in the file's order. Use as a context manager or
    call `close()`.
    """

    def __init__(
        self,
        path: Path,
        mapping: mmap.mmap,
        *,
        version: int,
        alignment: int,
        metadata: Mapping[str, MetadataValue],
        tensors: Mapping[str, TensorInfo],
    ) -> None:
        self.path = path
        self.version = version
        self.alignment = alignment
        self.metadata = MappingProxyType(metadata)
        self.tensors = MappingProxyType(tensors)
        self._mapping: mmap.mmap | None = mapping

    def tensor_data(self, name: str) -> memoryview:
        """The stored bytes of tensor `name`: read-only, `size_bytes` long, no copy.

        Raises ModelFileError where the file has no such tensor, EngineError after `close()`.
        """
        if self._mapping is None:
            raise EngineError(f"{self.path} is closed; tensor {quote(name)} can't be read any more")
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(
                self.path, f"tensor {quote(name)} is missing", "use a file that holds the whole model"
            )
        return memoryview(self._mapping)[info.offset : info.offset + info.size_bytes]

    def close(self) -> None:
        """Gives the mapping back: at once, or when the last view of it is dropped. May be called twice."""
        mapping, self._mapping = self._mapping, None
        if mapping is None:
            return
        try:
            mapping.close()
        except BufferError:
            # Views keep the mapping alive; it unmaps itself with the last of them.
            return

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_gguf(path: str | Path) -> GGUFFile:
    """Maps the GGUF file at `path` and checks all of its structure.

    Raises ModelFileError naming the file, what is wrong, where, and what to do; nothing stays open then.
    """
    path = Path(path)
    mapping = _map_file(path)
    try:
        return _read_structure(path, mapping)
    except BaseException:
        mapping.close()
        raise


def _read_structure(path: Path, mapping: mmap.mmap) -> GGUFFile:
    cursor = ByteCursor(path, mapping)
    header = read_header(cursor)
    spans = scan_metadata(cursor, header.num_metadata)
    alignment = read_alignment(cursor, spans)
    tensors = read_tensor_table(cursor, header.num_tensors, alignment=alignment)
    return GGUFFile(
        path,
        mapping,
        version=header.version,
        alignment=alignment,
        metadata=decode_metadata(cursor, spans),
        tensors=tensors,
    )


def _map_file(path: Path) -> mmap.mmap:
    try:
        # Looked at before it is opened: opening a pipe would wait for its writer.
        _check_regular(path, path.stat().st_mode)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise ModelFileError(path, "the file is empty (0 bytes)", DOWNLOAD_AGAIN)
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelFileError(
            path, "no such file", "check the path, or get a model with `ridgeline pull NAME`"
        ) from None
    except PermissionError:
        raise ModelFileError(
            path, "the file may not be read (permission denied)", "make it readable for this user"
        ) from None
    except (OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        raise ModelFileError(path, f"the file can't be opened ({reason})", "check the path") from None


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise ModelFileError(path, "is a directory, not a model file", "name the .gguf file in it")
    if not stat.S_ISREG(mode):
        raise ModelFileError(path, "is not a regular file, so it can't be mapped", "name a .gguf file")
