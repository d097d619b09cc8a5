"""The exact work of every op of a step, as the native forward pass performs it.

FLOPs count the model's arithmetic in real numbers: add, subtract, multiply, divide, compare, square root,
exponential, sine and cosine one each, so a multiply-add two. Not counted: how it is carried out (unpacking
weights, quantising inputs, conversion to half, the rescaling of an online softmax) and index arithmetic.

Bytes count the arrays an op reads and writes, each once: weights as stored, every panel of a matrix once a
step for all tokens (csrc/ops/matmul.h); K and V once for each group of 8 tokens of a request and once for all
query heads of a KV head (csrc/ops/attention.h); activations in the form the next product takes. A row that
is worked on while it is still in a thread's own buffer counts when it is stored, not again; index arrays and
block copies are not counted.

Closed forms: attention Vaswani et al. (2017) §3.2, with grouped queries Ainslie et al. (2023); a product with
m × n weights makes 2 m n FLOPs a token. What is fused, and how often it is read: the sources named.

An op includes what the native core books on it (csrc/ops/forward.h): the norm before a product belongs to
the op that makes its input; `norms` is the one before the head. Symbols: H hidden, F ffn, V vocabulary,
d head_dim, Q = heads × d, K = KV heads × d.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import add
from typing import NamedTuple

from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.perf.context_sums import distinct_positions, read_positions, visible_positions
from ridgeline.perf.model_shape import F32_BYTES, ModelShape
from ridgeline.perf.op_cost import OPS, OpCost
from ridgeline.perf.step_shape import StepRow, StepShape

SOFTMAX_FLOPS = 4
"""Per position: compare, subtract, exponential, add."""
SWIGLU_FLOPS = 4
"""gate / (1 + e^−gate) × up: exponential, add, divide, multiply (Shazeer 2020)."""
ROPE_FLOPS = 6
"""A rotated pair: four multiplies, two adds (Su et al. 2021, eq. 34)."""
ROPE_ANGLE_FLOPS = 3
"""Position × frequency, sine, cosine."""

_LAYER_OPS = ("qkv_proj", "attention", "o_proj", "gate_up_proj", "down_proj")
_FLOAT_TYPES = ("F32", "F16", "BF16")
_SCALE_BLOCK = 32


def norm_flops(size: int) -> int:
    """RMSNorm of one row: `size` multiply-adds; ÷ size, + eps, √, 1/x; two multiplies each (Zhang 2019)."""
    return 4 * size + 4


def input_bytes(quant_types: Sequence[str], size: int) -> int:
    """One row of `size` activations in the forms that products with these weight types take.

    Float weights take float32; Q8_0 int16 with a float32 scale per 32; the others int8 with a scale and a sum
    per 32. Several types: several forms. Source: csrc/dispatch.h.
    """
    scale_bytes = size // _SCALE_BLOCK * F32_BYTES
    forms = {"float" if t in _FLOAT_TYPES else "int16" if t == "Q8_0" else "int8" for t in quant_types}
    by_form = {"float": F32_BYTES * size, "int16": 2 * size + scale_bytes, "int8": size + 2 * scale_bytes}
    return sum(by_form[form] for form in forms)


class OpRates(NamedTuple):
    """An op's weight bytes that all rows share, and its FLOPs and bytes per token (or row of logits)."""

    step_weight_bytes: int
    row_flops: int
    row_weight_bytes: int
    row_activation_bytes: int


class WorkSums(NamedTuple):
    """All that the costs of steps depend on besides the model: sums over steps.

    Steps that compute a token, tokens, steps that make logits, rows of logits; positions that attention sees
    and that it reads, over layers.
    """

    num_steps: int
    num_tokens: int
    num_logits_steps: int
    num_logits_rows: int
    num_seen: int
    num_read: int


class OpCosts:
    """The costs of any step of one model: rates worked out once, then a few multiplications a step."""

    def __init__(self, model: ModelShape) -> None:
        self.model = model
        self._token_rates = {**_attention_side(model), **_ffn_side(model)}
        self._logits_rates = _logits_rates(model)

        self._layer_kinds = _layer_kinds(model)

    def of(self, step: StepShape) -> dict[str, OpCost]:
        """FLOPs and bytes of each of `OPS`, all layers together; ops of logits are 0 where none are made."""
        return self.of_sums(self.sums(step.rows))

    def sums(self, rows: Iterable[tuple[int, int, int]]) -> WorkSums:
        """What the costs of one step depend on; rows as in `StepRow`."""
        num_tokens = num_logits_rows = num_seen = num_read = 0
        for n, s, num_logits in rows:
            num_tokens += s
            num_logits_rows += num_logits
            for window, num_layers in self._layer_kinds:
                if s == 1 and window is None:  # a decode: by far the most frequent row
                    num_seen += num_layers * (n + 1)
                    num_read += num_layers * (n + 1)
                else:
                    num_seen += num_layers * visible_positions(n, s, window)
                    num_read += num_layers * read_positions(n, s, window)
        return WorkSums(
            *(int(num_tokens > 0), num_tokens, int(num_logits_rows > 0), num_logits_rows, num_seen, num_read)
        )

    def of_sums(self, sums: WorkSums) -> dict[str, OpCost]:
        """The costs of all steps together."""
        steps, tokens, logits_steps, logits_rows, seen, read = sums
        costs = {op: _scaled(rates, steps, tokens) for op, rates in self._token_rates.items()}
        costs |= {op: _scaled(rates, logits_steps, logits_rows) for op, rates in self._logits_rates.items()}
        kv_bytes_per_token = self.model.num_layers * 2 * self.model.kv_size * self.model.kv_itemsize
        costs["qkv_proj"] = costs["qkv_proj"]._replace(kv_written_bytes=tokens * kv_bytes_per_token)
        costs["attention"] = self._attention(costs["attention"], seen, read)
        return {op: costs[op] for op in OPS}

    def _attention(self, per_token: OpCost, num_seen: int, num_read: int) -> OpCost:
        """Per (token, head, position seen): d multiply-adds of QKᵀ, d of PV, and the softmax's four."""
        model = self.model
        flops = model.num_heads * (4 * model.head_dim + SOFTMAX_FLOPS) * num_seen
        kv_read_bytes = 2 * model.kv_size * model.kv_itemsize * num_read
        return per_token._replace(flops=per_token.flops + flops, kv_read_bytes=kv_read_bytes)


class WorkTotals:
    """The work of many steps of one model: sums while they run, costs when somebody asks."""

    def __init__(self, model: ModelShape) -> None:
        self._costs = OpCosts(model)
        self._sums = WorkSums(0, 0, 0, 0, 0, 0)

    def add(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """Take one step; rows as in `StepRow`."""
        self._sums = WorkSums(*map(add, self._sums, self._costs.sums(rows)))

    def by_op(self) -> dict[str, OpCost]:
        """FLOPs and bytes of each op over all steps taken."""
        return self._costs.of_sums(self._sums)


def step_costs(model: ModelShape, step: StepShape) -> dict[str, OpCost]:
    """FLOPs and bytes of each of `OPS` in one step; see `OpCosts` for many steps of one model."""
    return OpCosts(model).of(step)


def distinct_kv_bytes(model: ModelShape, rows: Sequence[StepRow]) -> int:
    """Bytes of K and V that a step's attention reads at least: each position in sight once."""
    positions = sum(
        num_layers * distinct_positions(row.num_computed_tokens, row.num_scheduled_tokens, window)
        for window, num_layers in _layer_kinds(model)
        for row in rows
    )
    return 2 * model.kv_size * model.kv_itemsize * positions


def spilled_bytes(model: ModelShape, op: str, cost: OpCost, cache_bytes: int) -> int:
    """Of an op's activation bytes those that even the best use of a cache of this size leaves to memory.

    A layer's op reads and writes activation_bytes / layers at a time and the next one reads what it wrote;
    of those, max(0, that − cache_bytes) can't have stayed. The ops outside the layers run once.
    """
    passes = model.num_layers if op in _LAYER_OPS else 1
    return max(0, cost.activation_bytes - passes * cache_bytes)


def total_cost(costs: Mapping[str, OpCost]) -> OpCost:
    """The sum over ops."""
    return OpCost(*(sum(column) for column in zip(*costs.values(), strict=True)))


def _layer_kinds(model: ModelShape) -> list[tuple[int | None, int]]:
    """(window, layers): those that see everything, and the windowed ones."""
    num_full = model.num_layers - model.num_window_layers
    kinds = [(None, num_full), (model.window, model.num_window_layers)]
    return [kind for kind in kinds if kind[1]]


def _scaled(rates: OpRates, num_steps: int, num_rows: int) -> OpCost:
    """`num_steps` of the steps have rows."""
    return OpCost(
        flops=num_rows * rates.row_flops,
        weight_bytes=num_steps * rates.step_weight_bytes + num_rows * rates.row_weight_bytes,
        kv_read_bytes=0,
        kv_written_bytes=0,
        activation_bytes=num_rows * rates.row_activation_bytes,
    )


def _inputs(model: ModelShape, *names: str) -> list[int]:
    """Bytes of one token's input of these matrices, layer by layer."""
    cols = model.matrix_shape(names[0])[1]
    return [
        input_bytes([model.matrix_types[name][layer] for name in names], cols)
        for layer in range(model.num_layers)
    ]


def _attention_side(model: ModelShape) -> dict[str, OpRates]:
    """FLOPs per token, and per layer but for embed.

    embed: RoPE angles, the first norm. qkv_proj: 2 H (Q + 2 K), biases, q/k norms, RoPE, queries × 1/√d.
    attention, less what depends on context: 1/sum of each head and Q multiplies. o_proj: 2 Q H, the
    residual sum, the FFN's norm.
    """
    layers, hidden, d = model.num_layers, model.hidden_size, model.head_dim
    qkv, pairs = model.q_size + 2 * model.kv_size, model.rope_dim // 2
    heads = model.num_heads + model.num_kv_heads
    norm_bytes = F32_BYTES * hidden
    qkv_inputs, o_inputs = _inputs(model, "q", "k", "v"), sum(_inputs(model, "o"))
    ffn_inputs = sum(_inputs(model, "gate", "up"))
    embedding_row = QUANT_TYPES[model.matrix_types["token_embd"][0]].size_bytes(hidden)
    angle_bytes = 2 * F32_BYTES * pairs
    embed = OpRates(
        norm_bytes,
        ROPE_ANGLE_FLOPS * pairs + norm_flops(hidden),
        embedding_row,
        F32_BYTES * hidden + angle_bytes + qkv_inputs[0],
    )
    finish = ROPE_FLOPS * pairs * heads + model.q_size
    finish += qkv if model.has_qkv_bias else 0
    finish += heads * norm_flops(d) if model.has_qk_norm else 0
    qkv_vectors = layers * (model.vector_bytes_per_layer - 2 * norm_bytes)
    qkv_proj = OpRates(
        model.matrix_bytes("q", "k", "v") + qkv_vectors,
        layers * (2 * hidden * qkv + finish),
        0,
        sum(qkv_inputs) + layers * (F32_BYTES * qkv + angle_bytes),
    )
    attention = OpRates(
        0, layers * (model.num_heads + model.q_size), 0, layers * 2 * F32_BYTES * model.q_size + o_inputs
    )
    o_proj = OpRates(
        model.matrix_bytes("o") + layers * norm_bytes,
        layers * (2 * model.q_size * hidden + hidden + norm_flops(hidden)),
        0,
        o_inputs + layers * 3 * F32_BYTES * hidden + ffn_inputs,
    )
    return {"embed": embed, "qkv_proj": qkv_proj, "attention": attention, "o_proj": o_proj}


def _ffn_side(model: ModelShape) -> dict[str, OpRates]:
    """gate_up_proj: 4 H F a layer and SwiGLU. down_proj: 2 F H, the residual, and the next layer's norm."""
    layers, hidden, ffn = model.num_layers, model.hidden_size, model.ffn_size
    down_inputs = sum(_inputs(model, "down"))
    next_inputs = sum(_inputs(model, "q", "k", "v")[1:])
    gate_up = OpRates(
        model.matrix_bytes("gate", "up"),
        layers * (4 * hidden * ffn + SWIGLU_FLOPS * ffn),
        0,
        sum(_inputs(model, "gate", "up")) + down_inputs,
    )
    down = OpRates(
        model.matrix_bytes("down") + (layers - 1) * F32_BYTES * hidden,
        layers * (2 * ffn * hidden + hidden) + (layers - 1) * norm_flops(hidden),
        0,
        down_inputs + layers * 3 * F32_BYTES * hidden + next_inputs,
    )
    return {"gate_up_proj": gate_up, "down_proj": down}


def _logits_rates(model: ModelShape) -> dict[str, OpRates]:
    """Per row of logits. norms: the last norm. lm_head: 2 H V. sample: one pass for the largest, V compares
    (what random sampling adds works on a row that is in the cache by then).
    """
    hidden, vocab = model.hidden_size, model.vocab_size
    head_input = input_bytes([model.head_type], hidden)
    head = "token_embd" if model.is_tied else "lm_head"
    norm_bytes, logits_bytes = F32_BYTES * hidden, F32_BYTES * vocab
    return {
        "norms": OpRates(norm_bytes, norm_flops(hidden), 0, norm_bytes + head_input),
        "lm_head": OpRates(model.matrix_bytes(head), 2 * hidden * vocab, 0, head_input + logits_bytes),
        "sample": OpRates(0, vocab, 0, logits_bytes),
    }
