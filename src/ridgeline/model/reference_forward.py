"""ReferenceForward: the forward pass in NumPy float32, the oracle of every faster one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from ridgeline.kernels import reference as ops
from ridgeline.model.batch import InputBatch
from ridgeline.model.kv_cache import new_reference_kv_cache
from ridgeline.model.weights import ModelWeights

Float32Array = NDArray[np.float32]


class ReferenceForward:
    """Float32 throughout: dequantised weights, activations, and the KV cache too."""

    def __init__(
        self, weights: ModelWeights, now: Callable[[], float], *, num_blocks: int, block_size: int
    ) -> None:
        self._config = weights.config
        self._weights = {name: weights.dequantized(name) for name in weights.tensors}
        self._kv_cache = new_reference_kv_cache(weights.config, num_blocks=num_blocks, block_size=block_size)
        self._block_size = block_size
        self._seconds = _Stopwatch(now)

    def run(self, batch: InputBatch) -> tuple[Float32Array, dict[str, float]]:
        """See `Forward.run`."""
        seconds = self._seconds
        seconds.restart()
        for source, target in batch.block_copies:
            self._kv_cache[target] = self._kv_cache[source]
        slots = _slots(batch, self._block_size)
        with seconds.of("embed"):
            hidden = self._weights["token_embd.weight"][batch.token_ids]
            rope = ops.rope_tables(batch.positions, self._config.rope_inv_freq)
        for layer in range(self._config.num_layers):
            self._attention_part(layer, hidden, batch, rope, slots)
            self._ffn_part(layer, hidden)
        with seconds.of("norms"):
            hidden = self._norm("output_norm.weight", hidden[batch.logits_rows])
        with seconds.of("lm_head"):
            head = "token_embd.weight" if self._config.is_tied else "output.weight"
            logits = self._matmul(head, hidden)
        return logits, seconds.by_op()

    def close(self) -> None:
        """Drop the weights and the cache."""
        self._weights = {}
        self._kv_cache = self._kv_cache[:0].copy()

    def _attention_part(
        self,
        layer: int,
        hidden: Float32Array,
        batch: InputBatch,
        rope: tuple[Float32Array, Float32Array],
        slots: tuple[NDArray[np.int32], NDArray[np.int32]],
    ) -> None:
        config, seconds, prefix = self._config, self._seconds, f"blk.{layer}"
        with seconds.of("norms"):
            normed = self._norm(f"{prefix}.attn_norm.weight", hidden)
        with seconds.of("qkv_proj"):
            q = self._projected(prefix, "q", normed, rope)
            k = self._projected(prefix, "k", normed, rope)
            v = self._projected(prefix, "v", normed, None)
            block_ids, offsets = slots
            self._kv_cache[block_ids, layer, 0, :, offsets] = k
            self._kv_cache[block_ids, layer, 1, :, offsets] = v
        with seconds.of("attention"):
            out = np.concatenate(list(self._attention(layer, q, batch)))
        with seconds.of("o_proj"):
            hidden += self._matmul(f"{prefix}.attn_output.weight", out.reshape(-1, config.q_size))

    def _ffn_part(self, layer: int, hidden: Float32Array) -> None:
        seconds, prefix = self._seconds, f"blk.{layer}"
        with seconds.of("norms"):
            normed = self._norm(f"{prefix}.ffn_norm.weight", hidden)
        with seconds.of("gate_up_proj"):
            gate = self._matmul(f"{prefix}.ffn_gate.weight", normed)
            gated = ops.swiglu(gate, self._matmul(f"{prefix}.ffn_up.weight", normed))
        with seconds.of("down_proj"):
            hidden += self._matmul(f"{prefix}.ffn_down.weight", gated)

    def _matmul(self, name: str, x: Float32Array) -> Float32Array:
        return x @ self._weights[name].T

    def _norm(self, name: str, x: Float32Array) -> Float32Array:
        return ops.rms_norm(x, self._weights[name], self._config.rms_norm_eps)

    def _projected(
        self, prefix: str, part: str, x: Float32Array, rope: tuple[Float32Array, Float32Array] | None
    ) -> Float32Array:
        """[T, heads, head_dim] of q, k or v: bias, q/k norm and rotation applied where the model has them."""
        config = self._config
        y = self._matmul(f"{prefix}.attn_{part}.weight", x)
        if config.has_qkv_bias:
            y += self._weights[f"{prefix}.attn_{part}.bias"]
        y = y.reshape(len(x), -1, config.head_dim)
        if rope is None:
            return y
        if config.has_qk_norm:
            y = self._norm(f"{prefix}.attn_{part}_norm.weight", y)
        return ops.rope(y, rope[0], rope[1], is_neox=config.rope_is_neox)

    def _attention(self, layer: int, q: Float32Array, batch: InputBatch) -> Iterator[Float32Array]:
        """Causal attention of each request over its own blocks; yields [num_tokens, heads, head_dim]."""
        for index, seq_len in enumerate(batch.seq_lens):
            start, end = batch.query_start_loc[index : index + 2]
            num_blocks = -(-seq_len // self._block_size)
            blocks = self._kv_cache[batch.block_tables[index, :num_blocks], layer]
            # [blocks, K|V, heads, slots, dim] → K|V of [heads, tokens, dim]
            k, v = (
                blocks[:, part].swapaxes(0, 1).reshape(blocks.shape[2], -1, blocks.shape[4])[:, :seq_len]
                for part in (0, 1)
            )
            yield _causal_attention(q[start:end], k, v, batch.positions[start:end])


def _causal_attention(
    q: Float32Array, k: Float32Array, v: Float32Array, positions: NDArray[np.int32]
) -> Float32Array:
    """q [T, heads, dim], k and v [kv_heads, context, dim] → [T, heads, dim]; row t sees ≤ positions[t]."""
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, context_len, _ = k.shape
    grouped = q.reshape(num_tokens, num_kv_heads, -1, head_dim).transpose(1, 2, 0, 3)
    scores = grouped @ k[:, None].swapaxes(-1, -2) * np.float32(head_dim**-0.5)
    visible = np.arange(context_len) <= positions[:, None]
    scores = np.where(visible, scores, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: Float32Array = weights @ v[:, None]
    return out.transpose(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim)


def _slots(batch: InputBatch, block_size: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(block id, offset in it) of every token of the batch."""
    owners = np.repeat(np.arange(len(batch.seq_lens)), np.diff(batch.query_start_loc))
    return batch.block_tables[owners, batch.positions // block_size], batch.positions % block_size


class _Stopwatch:
    """Adds up seconds by op."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._by_op: dict[str, float] = {}

    def restart(self) -> None:
        self._by_op = {}

    def by_op(self) -> dict[str, float]:
        return dict(self._by_op)

    @contextmanager
    def of(self, op: str) -> Iterator[None]:
        started_at_s = self._now()
        yield
        self._by_op[op] = self._by_op.get(op, 0.0) + self._now() - started_at_s
