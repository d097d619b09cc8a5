"""A builder of GGUF bytes, written from the specification, that can also build what no writer would."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import ModelFileError
from ridgeline.formats.gguf import open_gguf

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def pack_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def pack_value(value_type: int, value: Any) -> bytes:
    """An array's value is (element type, [elements])."""
    if value_type == STRING:
        return pack_string(value)
    if value_type == ARRAY:
        element_type, elements = value
        packed = b"".join(pack_value(element_type, each) for each in elements)
        return struct.pack("<IQ", element_type, len(elements)) + packed
    return struct.pack(f"<{SCALARS[value_type]}", value)


@dataclass
class GGUFBytes:
    """Collects metadata and tensors; `build()` lays them out and notes where things ended up."""

    version: int = 3
    alignment: int = 32
    entries: list[bytes] = field(default_factory=list)
    tensors: list[tuple[bytes, bytes]] = field(default_factory=list)
    data: bytes = b""
    tensor_table_at: int = 0
    data_at: int = 0

    def add(self, key: str | bytes, value_type: int, value: Any) -> "GGUFBytes":
        return self.add_packed(key, value_type, pack_value(value_type, value))

    def add_packed(self, key: str | bytes, value_type: int, packed: bytes) -> "GGUFBytes":
        self.entries.append(pack_string(key) + struct.pack("<I", value_type) + packed)
        return self

    def add_tensor(
        self,
        name: str | bytes,
        dims: tuple[int, ...],
        type_id: int,
        data: bytes,
        *,
        offset: int | None = None,
    ) -> "GGUFBytes":
        """`dims` in the file's order: the row length first."""
        self.data += bytes(-len(self.data) % self.alignment)
        placed = len(self.data) if offset is None else offset
        head = pack_string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        self.tensors.append((head + struct.pack("<IQ", type_id, placed), data))
        self.data += data
        return self

    def build(self, *, num_tensors: int | None = None, num_entries: int | None = None) -> bytes:
        counts = (
            len(self.tensors) if num_tensors is None else num_tensors,
            len(self.entries) if num_entries is None else num_entries,
        )
        out = b"GGUF" + struct.pack("<IQQ", self.version, *counts) + b"".join(self.entries)
        self.tensor_table_at = len(out)
        out += b"".join(head for head, _ in self.tensors)
        out += bytes(-len(out) % self.alignment)
        self.data_at = len(out)
        return out + self.data


@pytest.fixture
def new_gguf() -> type[GGUFBytes]:
    return GGUFBytes


@pytest.fixture
def small_gguf() -> GGUFBytes:
    """A little of everything: each value type, arrays of strings and of arrays, four quant types."""
    made = GGUFBytes().add("general.architecture", STRING, "llama").add("general.alignment", 4, 32)
    for value_type, code in SCALARS.items():
        made.add(f"scalar.{value_type}", value_type, 1.5 if code in "fd" else 1)
        made.add(f"array.{value_type}", ARRAY, (value_type, [1, 0, 1]))
    made.add("tokenizer.ggml.tokens", ARRAY, (STRING, [f"Ġtoken{index}" for index in range(40)]))
    made.add("nested", ARRAY, (ARRAY, [(4, [1, 2]), (STRING, ["a", ""]), (ARRAY, [(0, [7])])]))
    made.add_tensor("token_embd.weight", (64, 4), 8, bytes(range(136)) * 2)
    made.add_tensor("blk.0.attn_q.weight", (32, 3), 3, bytes(range(60)))
    made.add_tensor("blk.0.ffn_up.weight", (256, 2), 12, bytes(range(144)) * 2)
    return made.add_tensor("output_norm.weight", (5,), 0, struct.pack("<5f", 1, 2, 3, 4, 5))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def write_file(content: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        return path

    return write_file


@pytest.fixture
def num_open_files() -> Callable[[], int]:
    return lambda: len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def refused(
    write: Callable[[bytes], Path], num_open_files: Callable[[], int]
) -> Callable[[bytes | Path], ModelFileError]:
    """Opens what must not open; the error names the file on one line and nothing stays open."""

    def open_refused(content: bytes | Path) -> ModelFileError:
        path = content if isinstance(content, Path) else write(content)
        before = num_open_files()
        with pytest.raises(ModelFileError) as caught:
            open_gguf(path)
        assert num_open_files() == before
        error = caught.value
        assert error.path == path
        assert str(error) == f"{path}: {error.problem}; {error.remedy}"
        assert str(error).isprintable()
        assert error.remedy
        return error

    return open_refused
