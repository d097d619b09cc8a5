"""A forward pass that does what the native one does, op by op, on arrays that count.

Nothing in here knows a formula: products are made column by column, attention token by token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from tests.perf.counting_arrays import Inputs, Meter, Reals, Stored, Weights, joined

from ridgeline.config.model import ModelConfig
from ridgeline.kernels.tensor import QuantTensor
from ridgeline.perf.op_cost import OpCost
from ridgeline.perf.step_shape import StepRow

TOKENS_PER_READ = 8


class CountingForward:
    """One model with a float16 K/V store per request; windowed layers come first."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, QuantTensor],
        *,
        max_tokens: int,
        window: int | None = None,
        num_window_layers: int = 0,
    ) -> None:
        self._config = config
        self._meter = Meter()
        self._weights = {name: Weights(self._meter, tensor) for name, tensor in tensors.items()}
        self._max_tokens = max_tokens
        self._window, self._num_window_layers = window, num_window_layers
        self._kv: dict[int, Stored] = {}

    def run(
        self, rows: Sequence[StepRow], token_ids: Sequence[Sequence[int]]
    ) -> tuple[NDArray, dict[str, OpCost]]:
        """Logits [R, vocab] of the last `num_logits_rows` tokens of each row, and the costs of this step.

        Row i is request i; `token_ids` are those that it computes.
        """
        self._meter = meter = Meter()
        for part in (*self._weights.values(), *self._kv.values()):
            part._meter = meter
        owners = [
            (i, row.num_computed_tokens + t)
            for i, row in enumerate(rows)
            for t in range(row.num_scheduled_tokens)
        ]
        with meter.op("embed"):
            hidden, angles, inputs = self._embed([t for ids in token_ids for t in ids], owners)
        for layer in range(self._config.num_layers):
            inputs = self._layer(layer, hidden, angles, inputs, owners)
        wanted = self._logits_rows(rows)
        if not wanted:
            return np.zeros((0, self._config.vocab_size)), meter.costs()
        return self._predict(hidden, wanted), meter.costs()

    @staticmethod
    def _logits_rows(rows: Sequence[StepRow]) -> list[int]:
        wanted, end = [], 0
        for row in rows:
            end += row.num_scheduled_tokens
            wanted += range(end - row.num_logits_rows, end)
        return wanted

    def _activations(self, num_rows: int, width: int) -> Stored:
        return Stored(self._meter, "activation_bytes", np.zeros((num_rows, width), np.float32))

    def _types(self, *names: str) -> list[str]:
        return [self._weights[name].quant_type for name in names]

    def _vector(self, name: str) -> Reals:
        return self._weights[name].row(0)

    def _qkv_names(self, layer: int) -> list[str]:
        return [f"blk.{layer}.attn_{part}.weight" for part in "qkv"]

    def _norm(self, x: Reals, weight: Reals) -> Reals:
        size = x.values.shape[-1]
        mean = (x * x).total() / float(size) + self._config.rms_norm_eps
        return x * (1.0 / mean.sqrt())[..., None] * weight

    def _product(self, name: str, inputs: Inputs) -> list[Reals]:
        """weight × input for all tokens: each stored row of the weight is read once for all of them."""
        weight = self._weights[name]
        x = inputs.of(weight.quant_type)
        columns = []
        for index in range(len(weight)):
            row = weight.row(index)
            columns.append((x * row).total())
        made = np.stack([column.values for column in columns], axis=-1)
        return [Reals(self._meter, token) for token in made]

    def _embed(self, ids: Sequence[int], owners: Sequence[tuple[int, int]]) -> tuple[Stored, Stored, Inputs]:
        config, meter = self._config, self._meter
        hidden = self._activations(len(ids), config.hidden_size)
        angles = self._activations(len(ids), config.rope_dim)
        frequencies = np.array(config.rope_inv_freq, np.float32)
        norm = self._vector("blk.0.attn_norm.weight")
        normed = []
        for t, token_id in enumerate(ids):
            row = self._weights["token_embd.weight"].row(token_id)
            hidden.write(t, row)
            angle = Reals(meter, frequencies) * float(owners[t][1])
            angles.write(t, joined([angle.cos(), angle.sin()]))
            normed.append(self._norm(row, norm))
        return hidden, angles, Inputs(meter, normed, self._types(*self._qkv_names(0)))

    def _layer(
        self, layer: int, hidden: Stored, angles: Stored, inputs: Inputs, owners: Sequence[tuple[int, int]]
    ) -> Inputs:
        meter, prefix = self._meter, f"blk.{layer}"
        gate, up, down = (f"{prefix}.ffn_{part}.weight" for part in ("gate", "up", "down"))
        with meter.op("qkv_proj"):
            queries = self._project_qkv(layer, angles, inputs, owners)
        with meter.op("attention"):
            attended = self._attend(layer, queries, owners)
        with meter.op("o_proj"):
            inputs = self._add_product(
                hidden, f"{prefix}.attn_output.weight", attended, f"{prefix}.ffn_norm.weight", [gate, up]
            )
        with meter.op("gate_up_proj"):
            gated = []
            for g, u in zip(self._product(gate, inputs), self._product(up, inputs), strict=True):
                gated.append(g / (g.negated().exp() + 1.0) * u)
            activated = Inputs(meter, gated, self._types(down))
        with meter.op("down_proj"):
            is_last = layer + 1 == self._config.num_layers
            norm = None if is_last else f"blk.{layer + 1}.attn_norm.weight"
            return self._add_product(
                hidden, down, activated, norm, [] if is_last else self._qkv_names(layer + 1)
            )

    def _project_qkv(
        self, layer: int, angles: Stored, inputs: Inputs, owners: Sequence[tuple[int, int]]
    ) -> Stored:
        config = self._config
        parts = [self._product(name, inputs) for name in self._qkv_names(layer)]
        projected = self._activations(len(owners), config.q_size + 2 * config.kv_size)
        extras = {name: self._vector(name) for name in self._vector_names(layer)}
        for t, (request, position) in enumerate(owners):
            q, k, v = (part[t] for part in parts)
            if config.has_qkv_bias:
                q, k, v = (
                    x + extras[f"blk.{layer}.attn_{part}.bias"]
                    for x, part in zip((q, k, v), "qkv", strict=True)
                )
            turn = angles.read(t)
            q = self._turned(q, extras.get(f"blk.{layer}.attn_q_norm.weight"), turn) * config.head_dim**-0.5
            k = self._turned(k, extras.get(f"blk.{layer}.attn_k_norm.weight"), turn)
            projected.write(t, joined([q, k, v]))
            cache = self._cache_of(request)
            cache.write((layer, 0, slice(None), position), _heads(k, config.head_dim))
            cache.write((layer, 1, slice(None), position), _heads(v, config.head_dim))
        return projected

    def _vector_names(self, layer: int) -> list[str]:
        names = [f"blk.{layer}.attn_{part}.bias" for part in "qkv"]
        names += [f"blk.{layer}.attn_{part}_norm.weight" for part in "qk"]
        return [name for name in names if name in self._weights]

    def _turned(self, x: Reals, norm: Reals | None, turn: Reals) -> Reals:
        config = self._config
        heads = _heads(x, config.head_dim)
        if norm is not None:
            heads = self._norm(heads, norm)
        pairs = config.rope_dim // 2
        cosine, sine = turn[:pairs], turn[pairs:]
        first, second = _pair_indices(config)
        left, right = heads[:, first], heads[:, second]
        out = heads.values.copy()
        out[:, first] = (left * cosine - right * sine).values
        out[:, second] = (left * sine + right * cosine).values
        return Reals(self._meter, out.reshape(-1))

    def _cache_of(self, request: int) -> Stored:
        if request not in self._kv:
            config = self._config
            shape = (config.num_layers, 2, config.num_kv_heads, self._max_tokens, config.head_dim)
            self._kv[request] = Stored(self._meter, "kv", np.zeros(shape, np.float16))
        return self._kv[request]

    def _first_seen(self, layer: int, position: int) -> int:
        is_windowed = layer < self._num_window_layers
        return max(0, position + 1 - self._window) if is_windowed and self._window else 0

    def _attend(self, layer: int, queries: Stored, owners: Sequence[tuple[int, int]]) -> Inputs:
        config = self._config
        out = self._activations(len(owners), config.q_size)
        results: list[list[Reals]] = [[] for _ in owners]
        for group in _groups(owners):
            request, first = owners[group[0]]
            seen = slice(self._first_seen(layer, first), owners[group[-1]][1] + 1)
            for kv_head in range(config.num_kv_heads):
                cache = self._cache_of(request)
                keys, values = (cache.read((layer, part, kv_head, seen)) for part in (0, 1))
                for t in group:
                    lo = self._first_seen(layer, owners[t][1]) - seen.start
                    hi = owners[t][1] + 1 - seen.start
                    results[t] += self._heads_of(queries, t, kv_head, keys[lo:hi], values[lo:hi])
        for t, heads in enumerate(results):
            out.write(t, joined(heads))
        output_type = self._types(f"blk.{layer}.attn_output.weight")
        return Inputs(self._meter, [Reals(self._meter, row) for row in out.array], output_type)

    def _heads_of(self, queries: Stored, t: int, kv_head: int, keys: Reals, values: Reals) -> list[Reals]:
        """The query heads of one KV head for one token; it sees all of keys and values, [seen, head_dim]."""
        config, d = self._config, self._config.head_dim
        heads_per_kv_head = config.num_heads // config.num_kv_heads
        made = []
        for head in range(kv_head * heads_per_kv_head, (kv_head + 1) * heads_per_kv_head):
            q = queries.read((t, slice(head * d, (head + 1) * d)))
            scores = (keys * q).total()
            weights = (scores - scores.largest()).exp()
            weighted = _swapped(values) * weights
            made.append(weighted.total() * (1.0 / weights.total()))
        return made

    def _add_product(
        self, hidden: Stored, name: str, inputs: Inputs, norm: str | None, following: list[str]
    ) -> Inputs:
        products = self._product(name, inputs)
        scratch = self._activations(len(products), self._config.hidden_size)
        weight = None if norm is None else self._vector(norm)
        normed = []
        for t, product in enumerate(products):
            scratch.write(t, product)
            row = hidden.read(t) + product
            hidden.write(t, row)
            if weight is not None:
                normed.append(self._norm(row, weight))
        return Inputs(self._meter, normed, self._types(*following)) if normed else inputs

    def _predict(self, hidden: Stored, wanted: Sequence[int]) -> NDArray:
        config, meter = self._config, self._meter
        head = "token_embd.weight" if config.is_tied else "output.weight"
        with meter.op("norms"):
            norm = self._vector("output_norm.weight")
            inputs = Inputs(meter, [self._norm(hidden.read(t), norm) for t in wanted], self._types(head))
        with meter.op("lm_head"):
            logits = self._activations(len(wanted), config.vocab_size)
            for i, row in enumerate(self._product(head, inputs)):
                logits.write(i, row)
        with meter.op("sample"):
            for i in range(len(wanted)):
                logits.read(i).largest()
        return logits.array


def _heads(x: Reals, head_dim: int) -> Reals:
    return Reals(x._meter, x.values.reshape(-1, head_dim))


def _swapped(x: Reals) -> Reals:
    return Reals(x._meter, x.values.T)


def _pair_indices(config: ModelConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    half = config.rope_dim // 2
    if config.rope_is_neox:
        return np.arange(half), np.arange(half, 2 * half)
    return np.arange(0, 2 * half, 2), np.arange(1, 2 * half, 2)


def _groups(owners: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Runs of up to eight neighbouring tokens of a request."""
    groups: list[list[int]] = []
    for t, (request, _) in enumerate(owners):
        if groups and owners[groups[-1][0]][0] == request and len(groups[-1]) < TOKENS_PER_READ:
            groups[-1].append(t)
        else:
            groups.append([t])
    return groups
