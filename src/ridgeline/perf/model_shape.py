"""ModelShape: what the costs of a step depend on besides the step: dimensions, and every tensor's format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.config.model import ModelConfig
from ridgeline.errors import ConfigError
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.perf.kv_memory import KVShape
from ridgeline.perf.model_dims import ModelDims

LAYER_MATRICES: Mapping[str, str] = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
"""A layer's matrices by the name used here; the values are their GGUF names inside `blk.N.`."""
OP_MATRICES: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q", "k", "v"),
    "o_proj": ("o",),
    "gate_up_proj": ("gate", "up"),
    "down_proj": ("down",),
}
"""The products of a layer by op."""
F32_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer with gated FFN.

    `matrix_types` holds the quant types: one a layer of each of `LAYER_MATRICES`, one of `token_embd`, and
    one of `lm_head` unless the model is tied. Vectors (norms, biases) are float32. `kv_itemsize` is bytes per
    element of K and V. `num_window_layers` of the layers see only the last `window` tokens.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    rope_dim: int
    matrix_types: Mapping[str, Sequence[str]]
    has_qkv_bias: bool = False
    has_qk_norm: bool = False
    is_tied: bool = False
    kv_itemsize: int = 2
    window: int | None = None
    num_window_layers: int = 0

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim

    @property
    def kv_shape(self) -> KVShape:
        """K and V as the memory formula takes them."""
        return KVShape(
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            itemsize=self.kv_itemsize,
            window=self.window,
            num_window_layers=self.num_window_layers,
        )

    @property
    def head_type(self) -> str:
        """The quant type of the matrix that makes logits."""
        return self.matrix_types["token_embd" if self.is_tied else "lm_head"][0]

    def op_format(self, op: str) -> str:
        """The quant type of an op's matrices: of the first of them in the first layer, or of the head."""
        return self.head_type if op == "lm_head" else self.matrix_types[OP_MATRICES[op][0]][0]

    def matrix_shape(self, name: str) -> tuple[int, int]:
        """(rows, columns) of one matrix."""
        shapes = {
            "token_embd": (self.vocab_size, self.hidden_size),
            "lm_head": (self.vocab_size, self.hidden_size),
            "q": (self.q_size, self.hidden_size),
            "k": (self.kv_size, self.hidden_size),
            "v": (self.kv_size, self.hidden_size),
            "o": (self.hidden_size, self.q_size),
            "gate": (self.ffn_size, self.hidden_size),
            "up": (self.ffn_size, self.hidden_size),
            "down": (self.hidden_size, self.ffn_size),
        }
        return shapes[name]

    def matrix_bytes(self, *names: str) -> int:
        """Stored bytes of these matrices, all layers together: rows × whole quant blocks a row."""
        return sum(sum(self.matrix_bytes_by_type(name).values()) for name in names)

    def matrix_bytes_by_type(self, name: str) -> dict[str, int]:
        """Stored bytes of one matrix, all layers together, by quant type."""
        rows, cols = self.matrix_shape(name)
        counts = Counter(self.matrix_types[name])
        return {each: rows * QUANT_TYPES[each].size_bytes(cols) * n for each, n in counts.items()}

    @property
    def vector_bytes_per_layer(self) -> int:
        """Norms, biases and q/k norms of one layer, in float32."""
        biases = self.q_size + 2 * self.kv_size if self.has_qkv_bias else 0
        head_norms = 2 * self.head_dim if self.has_qk_norm else 0
        return F32_BYTES * (2 * self.hidden_size + biases + head_norms)

    @property
    def weights_bytes(self) -> int:
        """All matrices as stored, and the vectors in float32."""
        head = () if self.is_tied else ("lm_head",)
        matrices = self.matrix_bytes("token_embd", *head, *LAYER_MATRICES)
        return matrices + self.num_layers * self.vector_bytes_per_layer + F32_BYTES * self.hidden_size

    @property
    def main_format(self) -> str:
        """The quant type that holds most bytes of the layers' matrices and the head."""
        by_type: Counter[str] = Counter()
        for name in (*LAYER_MATRICES, "token_embd" if self.is_tied else "lm_head"):
            rows, cols = self.matrix_shape(name)
            for each in self.matrix_types[name]:
                by_type[each] += rows * QUANT_TYPES[each].size_bytes(cols)
        return by_type.most_common(1)[0][0]

    def with_weights(self, quant_type: str) -> ModelShape:
        """The same model with every matrix in one quant type.

        Raises:
            ConfigError: a matrix's rows are no whole quant blocks of it.
        """
        size = QUANT_TYPES[quant_type].quant_block_size
        for name in self.matrix_types:
            cols = self.matrix_shape(name)[1]
            if cols % size:
                raise ConfigError("weights", quant_type, f"{name} has rows of {cols}, no multiple of {size}")
        return replace(
            self, matrix_types={name: (quant_type,) * len(t) for name, t in self.matrix_types.items()}
        )


def model_shape_of(
    config: ModelConfig, quant_types: Mapping[str, str], *, kv_itemsize: int = 2
) -> ModelShape:
    """The shape of a loaded model; `quant_types` maps GGUF tensor names to the types computed with."""
    types = {
        name: tuple(quant_types[f"blk.{layer}.{gguf}.weight"] for layer in range(config.num_layers))
        for name, gguf in LAYER_MATRICES.items()
    }
    types["token_embd"] = (quant_types["token_embd.weight"],)
    if not config.is_tied:
        types["lm_head"] = (quant_types["output.weight"],)
    return ModelShape(
        name=config.name,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        ffn_size=config.ffn_size,
        vocab_size=config.vocab_size,
        rope_dim=config.rope_dim,
        matrix_types=types,
        has_qkv_bias=config.has_qkv_bias,
        has_qk_norm=config.has_qk_norm,
        is_tied=config.is_tied,
        kv_itemsize=kv_itemsize,
    )


def model_shape_of_dims(dims: ModelDims, *, name: str = "model", kv_itemsize: int = 2) -> ModelShape:
    """The shape of a model known by its dimensions: no biases, no q/k norms, RoPE over whole heads.

    Raises:
        ConfigError: a dimension is missing, or rows are no whole quant blocks of the weight type.
    """
    hidden, heads, ffn, vocab = dims.hidden, dims.heads, dims.ffn, dims.vocab
    if hidden is None or heads is None or ffn is None or vocab is None:
        raise ConfigError(dims.missing_for_weights[0], None, "is missing; the costs of a step depend on it")
    dims.weights_bytes()
    types = {each: (dims.weight_type,) * dims.layers for each in LAYER_MATRICES}
    types["token_embd"] = (dims.weight_type,)
    if not dims.tied:
        types["lm_head"] = (dims.weight_type,)
    return ModelShape(
        name=name,
        num_layers=dims.layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=dims.kv_heads,
        head_dim=dims.head_dim,
        ffn_size=ffn,
        vocab_size=vocab,
        rope_dim=dims.head_dim,
        matrix_types=types,
        is_tied=dims.tied,
        kv_itemsize=kv_itemsize,
        window=dims.window,
        num_window_layers=dims.window_layers,
    )
