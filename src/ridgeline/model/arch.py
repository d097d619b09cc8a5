"""Architectures as a table, and the ModelConfig that a file's metadata amounts to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.config.model import ModelConfig
from ridgeline.errors import ModelFileError

_MAX_NUMBER = 1e12
_REMEDY = "use a file of a supported model, or convert it again"


@dataclass(frozen=True, slots=True)
class Architecture:
    """What sets one architecture apart from a plain pre-norm transformer with SwiGLU."""

    name: str
    rope_is_neox: bool
    has_qkv_bias: bool
    has_qk_norm: bool


ARCHITECTURES: Mapping[str, Architecture] = {
    arch.name: arch
    for arch in (
        Architecture("llama", rope_is_neox=False, has_qkv_bias=False, has_qk_norm=False),
        Architecture("qwen2", rope_is_neox=True, has_qkv_bias=True, has_qk_norm=False),
        Architecture("qwen3", rope_is_neox=True, has_qkv_bias=False, has_qk_norm=True),
    )
}


class _Fields:
    """Typed, bounded reads of the metadata under one architecture's prefix."""

    def __init__(self, metadata: Mapping[str, object], path: Path, prefix: str) -> None:
        self._metadata = metadata
        self._path = path
        self._prefix = prefix

    def fail(self, key: str, value: object, what: str) -> ModelFileError:
        return ModelFileError(self._path, f"{self._prefix}.{key} is {value!r}: {what}", _REMEDY)

    def get(self, key: str) -> object:
        return self._metadata.get(f"{self._prefix}.{key}")

    def count(self, key: str, *, default: int | None = None, low: int = 1, high: int) -> int:
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.fail(key, None, "it must be there")
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.fail(key, value, f"must be a whole number in {low}…{high}")
        return value

    def number(self, key: str, *, default: float | None = None) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, float | int) or isinstance(value, bool) or not 0 < value <= _MAX_NUMBER:
            raise self.fail(key, value, f"must be a number > 0 and ≤ {_MAX_NUMBER:g}")
        return float(value)


def architecture_of(metadata: Mapping[str, object], path: Path) -> Architecture:
    """The table's row for `general.architecture`.

    Raises:
        ModelFileError: the key is missing or names an architecture that is not in the table.
    """
    name = metadata.get("general.architecture")
    arch = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if arch is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelFileError(path, f"architecture {name!r} is not supported", f"supported are {known}")
    return arch


def model_config(
    metadata: Mapping[str, object],
    *,
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    rope_factors: NDArray[np.float32] | None,
) -> ModelConfig:
    """Dimensions and switches from metadata and tensor shapes.

    `rope_factors` are the file's `rope_freqs.weight` divisors, [rope_dim / 2], if it has them.

    Raises:
        ModelFileError: a key is missing, out of range, or disagrees with another.
    """
    arch = architecture_of(metadata, path)
    fields = _Fields(metadata, path, arch.name)
    hidden_size = fields.count("embedding_length", high=1 << 20)
    num_heads = fields.count("attention.head_count", high=1 << 12)
    num_kv_heads = fields.count("attention.head_count_kv", default=num_heads, high=1 << 12)
    head_dim = fields.count("attention.key_length", default=max(hidden_size // num_heads, 1), high=1 << 12)
    rope_dim = fields.count("rope.dimension_count", default=head_dim, high=head_dim)
    _check_dimensions(fields, hidden_size, num_heads, num_kv_heads, head_dim, rope_dim)
    _refuse_experts(fields)
    embedding = shapes.get("token_embd.weight", ())
    if len(embedding) != 2:
        raise ModelFileError(path, "tensor token_embd.weight is missing or not a matrix", _REMEDY)
    return ModelConfig(
        name=path.stem,
        arch=arch.name,
        num_layers=fields.count("block_count", high=1 << 12),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_size=fields.count("feed_forward_length", high=1 << 22),
        vocab_size=embedding[0],
        context_len=fields.count("context_length", low=2, high=1 << 30),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope_dim=rope_dim,
        rope_is_neox=arch.rope_is_neox,
        rope_inv_freq=_rope_inv_freq(fields, rope_dim, rope_factors),
        has_qkv_bias=arch.has_qkv_bias or "blk.0.attn_q.bias" in shapes,
        has_qk_norm=arch.has_qk_norm,
        is_tied="output.weight" not in shapes,
    )


def _check_dimensions(
    fields: _Fields, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, rope_dim: int
) -> None:
    if fields.get("attention.key_length") is None and hidden_size % num_heads:
        raise fields.fail("attention.head_count", num_heads, f"must divide embedding_length {hidden_size}")
    if num_heads % num_kv_heads:
        raise fields.fail("attention.head_count_kv", num_kv_heads, f"must divide head_count {num_heads}")
    if fields.count("attention.value_length", default=head_dim, high=1 << 12) != head_dim:
        raise fields.fail(
            "attention.value_length",
            fields.get("attention.value_length"),
            f"must equal key_length {head_dim}",
        )
    if head_dim % 8:
        raise fields.fail("attention.key_length", head_dim, "must be a multiple of 8")
    if rope_dim % 2:
        raise fields.fail("rope.dimension_count", rope_dim, "must be even")


def _refuse_experts(fields: _Fields) -> None:
    if fields.get("expert_count") not in (None, 0):
        raise fields.fail("expert_count", fields.get("expert_count"), "mixtures of experts are not supported")


def _rope_inv_freq(
    fields: _Fields, rope_dim: int, rope_factors: NDArray[np.float32] | None
) -> tuple[float, ...]:
    """theta^(−2i / rope_dim), divided by the file's factors and by linear scaling (RoFormer §3.2.2)."""
    theta = fields.number("rope.freq_base", default=10000.0)
    inv_freq = theta ** (-np.arange(0, rope_dim, 2, dtype=np.float64) / rope_dim)
    scaling = fields.get("rope.scaling.type")
    if scaling not in (None, "none", "linear"):
        raise fields.fail("rope.scaling.type", scaling, "supported are none and linear")
    if scaling == "linear" or fields.get("rope.scale_linear") is not None:
        factor = fields.number("rope.scaling.factor", default=fields.number("rope.scale_linear", default=1.0))
        inv_freq = inv_freq / factor
    if rope_factors is not None:
        if rope_factors.shape != inv_freq.shape or not np.all(rope_factors > 0):
            raise fields.fail("rope.dimension_count", rope_dim, "disagrees with tensor rope_freqs.weight")
        inv_freq = inv_freq / rope_factors
    if not np.all(np.isfinite(inv_freq)) or inv_freq.max() > _MAX_NUMBER:
        raise fields.fail("rope.freq_base", theta, "gives rotations without bounds")
    return tuple(inv_freq.astype(np.float32).tolist())
