"""ModelConfig: a model's dimensions and the few switches its architecture has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Dimensions of a decoder-only transformer, as its file states them.

    `rope_inv_freq` holds the `rope_dim / 2` inverse frequencies in float32 values, file factors and
    linear scaling applied. `rope_is_neox` pairs dimension i with i + rope_dim/2; otherwise 2i with 2i+1.
    """

    name: str
    arch: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    context_len: int
    rms_norm_eps: float
    rope_dim: int
    rope_is_neox: bool
    rope_inv_freq: tuple[float, ...]
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    is_tied: bool = False

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim
