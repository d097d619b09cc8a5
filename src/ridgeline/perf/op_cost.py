"""OpCost: the work of one operation in one step."""

from __future__ import annotations

from typing import NamedTuple

OPS = (
    "embed",
    "norms",
    "qkv_proj",
    "attention",
    "o_proj",
    "gate_up_proj",
    "down_proj",
    "lm_head",
    "sample",
)
"""In the order of a layer; the same names as in the engine's per-op seconds."""


class OpCost(NamedTuple):
    """FLOPs (a multiply-add is two) and bytes of one op, all layers together.

    `weight_bytes` as stored in the file; `kv_read_bytes` and `kv_written_bytes` of the KV cache;
    `activation_bytes` read and written, wherever they lie.
    """

    flops: int
    weight_bytes: int
    kv_read_bytes: int
    kv_written_bytes: int
    activation_bytes: int

    @property
    def num_bytes(self) -> int:
        """All bytes read and written."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_written_bytes + self.activation_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache read and written."""
        return self.kv_read_bytes + self.kv_written_bytes
