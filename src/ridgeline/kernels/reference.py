"""NumPy twins of the native kernels, under the same names: what each of them computes, in a few lines.

They are the definition the native kernels are tested against and the ops of the reference executor. Float32
in and out unless said otherwise; none changes its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.kernels.dequantize import dequantize
from ridgeline.kernels.tensor import QuantTensor

Float32Array = NDArray[np.float32]

ACTIVATION_BLOCK = 32
"""Activations that share one int8 scale."""

_SMALLEST_AMAX = np.float32(1e-30)


@dataclass(frozen=True, slots=True)
class PagedContext:
    """Where the rows of a ragged batch stand: S sequences with T rows in all.

    Sequence s owns rows query_start_loc[s] … query_start_loc[s + 1] and the blocks block_tables[s]; row t
    is at positions[t] and sees everything up to there.
    """

    block_tables: NDArray[np.int32]
    positions: NDArray[np.int32]
    query_start_loc: NDArray[np.int32]


def dequantize_rows(weight: QuantTensor) -> Float32Array:
    """The float32 values of a stored matrix, [rows, columns]."""
    return dequantize(weight.quant_type, weight.data, weight.shape)


def quantize_activations(x: Float32Array) -> tuple[NDArray[np.int8], Float32Array, Float32Array]:
    """x[T, K] → q i8[T, K] in [−127, 127], scales[T, K/32], scaled_sums[T, K/32]; K is a multiple of 32.

    Per block of 32: scale = max|x| / 127, q = x · (127 / max|x|) rounded to nearest even, scaled_sum =
    scale · Σq. Blocks with max|x| < 1e−30 count as zero.
    """
    q, scales = _quantize(x, 127)
    scaled_sums = (scales * q.sum(axis=-1)).astype(np.float32)
    return q.astype(np.int8).reshape(x.shape), scales, scaled_sums


def quantize_activations_16(x: Float32Array) -> tuple[NDArray[np.int16], Float32Array]:
    """As `quantize_activations` with q i16[T, K] in [−32767, 32767], for 8-bit weights; no sums."""
    q, scales = _quantize(x, 32767)
    return q.astype(np.int16).reshape(x.shape), scales


def _quantize(x: Float32Array, limit: int) -> tuple[Float32Array, Float32Array]:
    """Rounded q[T, K/32, 32] with magnitudes up to `limit`, and scales[T, K/32]."""
    num_tokens, num_columns = x.shape
    blocks = x.reshape(num_tokens, num_columns // ACTIVATION_BLOCK, ACTIVATION_BLOCK)
    amax = np.abs(blocks).max(axis=-1)
    is_zero = amax < _SMALLEST_AMAX
    inverse = np.where(is_zero, 0, np.float32(limit) / np.where(is_zero, 1, amax)).astype(np.float32)
    scales = np.where(is_zero, 0, amax / np.float32(limit)).astype(np.float32)
    return np.rint(blocks * inverse[..., None]), scales


def matmul(weight: QuantTensor, x: Float32Array) -> Float32Array:
    """x[T, K] · weight[rows, K]ᵀ → [T, rows], summed in float64.

    Quantised weights meet activations as `quantize_activations` rounds them (8-bit ones as
    `quantize_activations_16` does), float weights exact ones.
    """
    inputs = x.astype(np.float64)
    if weight.quant_type.quant_block_size > 1:
        is_8_bit = weight.quant_type.name == "Q8_0"
        q, scales = quantize_activations_16(x) if is_8_bit else quantize_activations(x)[:2]
        inputs = np.repeat(scales.astype(np.float64), ACTIVATION_BLOCK, axis=1) * q
    product: NDArray[np.float64] = inputs @ dequantize_rows(weight).astype(np.float64).T
    return product.astype(np.float32)


def rms_norm(x: Float32Array, weight: Float32Array, eps: float) -> Float32Array:
    """x[…, N] / √(mean(x²) + eps) · weight[N]. Source: Zhang & Sennrich 2019, §3."""
    mean_square: Float32Array = np.mean(np.square(x), axis=-1, keepdims=True)
    normed: Float32Array = x / np.sqrt(mean_square + np.float32(eps)) * weight
    return normed


def rope_tables(positions: NDArray[np.int32], inv_freq: Sequence[float]) -> tuple[Float32Array, Float32Array]:
    """Cosine and sine of positions[T] · inv_freq[P] in float64, each rounded to float32[T, P]."""
    angles = positions.astype(np.float64)[:, None] * np.asarray(inv_freq, np.float64)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rope(heads: Float32Array, cosine: Float32Array, sine: Float32Array, *, is_neox: bool) -> Float32Array:
    """Rotate the first 2P dimensions of heads[T, H, D] by the tables [T, P]; the others stay.

    Pair i is dimensions (i, i + P) in GPT-NeoX order, else (2i, 2i + 1). Source: RoFormer §3.4.
    """
    num_pairs = cosine.shape[1]
    if is_neox:
        first, second = slice(0, num_pairs), slice(num_pairs, 2 * num_pairs)
    else:
        first, second = slice(0, 2 * num_pairs, 2), slice(1, 2 * num_pairs, 2)
    rotated = heads.copy()
    cosine, sine = cosine[:, None, :], sine[:, None, :]
    rotated[..., first] = heads[..., first] * cosine - heads[..., second] * sine
    rotated[..., second] = heads[..., first] * sine + heads[..., second] * cosine
    return rotated


def swiglu(gate: Float32Array, up: Float32Array) -> Float32Array:
    """gate / (1 + e^−gate) · up, elementwise. Source: Shazeer 2020, "GLU Variants Improve Transformer"."""
    activated: Float32Array = gate / (1 + np.exp(np.minimum(-gate, np.float32(88)))) * up
    return activated


def attention(query: Float32Array, kv_cache: NDArray[np.float16], context: PagedContext) -> Float32Array:
    """Causal attention of query[T, H, D], already scaled, over layer 0 of a paged cache → [T, H, D].

    kv_cache f16[blocks, layers, KV heads, 2, D · block_size] with K [D][block_size] and V [block_size][D].
    Computed in float64. Source: PagedAttention §4.1.
    """
    num_heads, head_dim = query.shape[1:]
    _, _, num_kv_heads, _, head_size = kv_cache.shape
    block_size = head_size // head_dim
    out = np.empty_like(query)
    for seq, table in enumerate(context.block_tables):
        for token in range(*context.query_start_loc[seq : seq + 2]):
            context_len = context.positions[token] + 1
            num_blocks = -(-context_len // block_size)
            blocks = kv_cache[table[:num_blocks], 0].astype(np.float64)
            k = blocks[:, :, 0].reshape(num_blocks, num_kv_heads, head_dim, block_size)
            v = blocks[:, :, 1].reshape(num_blocks, num_kv_heads, block_size, head_dim)
            k = k.transpose(1, 2, 0, 3).reshape(num_kv_heads, head_dim, -1)[..., :context_len]
            v = v.transpose(1, 0, 2, 3).reshape(num_kv_heads, -1, head_dim)[:, :context_len]
            grouped = query[token].astype(np.float64).reshape(num_kv_heads, -1, head_dim)
            scores = grouped @ k
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            out[token] = (weights @ v).reshape(num_heads, head_dim)
    return out
