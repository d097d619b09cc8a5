"""ModelDims: a model as its dimensions alone, read from a mapping, and the bytes of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.errors import ConfigError
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.perf.kv_memory import KVShape

_COUNTS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "window", "window_layers")
_KEYS = (*_COUNTS, "tied", "weight_type")
_MAY_BE_ZERO = ("window_layers",)
_FOR_WEIGHTS = ("hidden", "heads", "ffn", "vocab")
_MAX_COUNT = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDims:
    """Dimensions of a decoder-only transformer with gated FFN; None where they were not given.

    `head_dim` is never derived from hidden / heads when given.
    """

    layers: int
    kv_heads: int
    head_dim: int
    heads: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    tied: bool = False
    weight_type: str = "F16"
    window: int | None = None
    window_layers: int = 0

    def kv_shape(self, itemsize: int = 2) -> KVShape:
        """What K and V take; `itemsize` in bytes."""
        return KVShape(
            num_layers=self.layers,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            itemsize=itemsize,
            window=self.window,
            num_window_layers=self.window_layers,
        )

    @property
    def missing_for_weights(self) -> tuple[str, ...]:
        """The keys without which the weights can't be added up."""
        return tuple(name for name in _FOR_WEIGHTS if getattr(self, name) is None)

    def weights_bytes(self) -> int | None:
        """Matrices in `weight_type`, norms in F32; None where dimensions are missing.

        Raises:
            ConfigError: rows are no whole quant blocks of `weight_type`.
        """
        if self.hidden is None or self.heads is None or self.ffn is None or self.vocab is None:
            return None
        hidden, q_size, kv_size = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        quant_type = QUANT_TYPES[self.weight_type]
        for name, row in (("hidden", hidden), ("heads × head_dim", q_size), ("ffn", self.ffn)):
            if row % quant_type.quant_block_size:
                remedy = (
                    f"must be a multiple of {quant_type.quant_block_size}, {self.weight_type}'s quant block"
                )
                raise ConfigError(name, row, remedy)
        layer = hidden * (q_size + 2 * kv_size) + q_size * hidden + 3 * hidden * self.ffn
        embeddings = self.vocab * hidden * (1 if self.tied else 2)
        norms = hidden * (2 * self.layers + 1)
        return quant_type.size_bytes(self.layers * layer + embeddings) + QUANT_TYPES["F32"].size_bytes(norms)


def model_dims(values: object) -> ModelDims:
    """Dimensions from a mapping of the keys of `ModelDims`.

    Needed are `layers`, `heads` or `kv_heads`, and `head_dim` or `hidden` and `heads`; `kv_heads` is `heads`
    where it is missing (multi-head attention).

    Raises:
        ConfigError: not a mapping, unknown or missing keys, a value of the wrong type or out of range.
    """
    if not isinstance(values, Mapping):
        raise ConfigError("dimensions", values, f"must be a JSON object with keys of {', '.join(_KEYS)}")
    unknown = sorted(str(key) for key in values if key not in _KEYS)
    if unknown:
        raise ConfigError("dimensions", unknown[0], f"is no known key; known are {', '.join(_KEYS)}")
    counts = {name: _count(values, name) for name in _COUNTS}
    heads = counts["heads"]
    kv_heads = counts["kv_heads"] or heads
    if counts["layers"] is None or kv_heads is None:
        name = "layers" if counts["layers"] is None else "kv_heads"
        raise ConfigError(name, None, "is missing; K and V depend on it")
    if heads is not None and heads % kv_heads:
        raise ConfigError("kv_heads", kv_heads, f"must divide heads {heads}")
    dims = ModelDims(
        layers=counts["layers"],
        kv_heads=kv_heads,
        head_dim=_head_dim(counts),
        heads=heads,
        hidden=counts["hidden"],
        ffn=counts["ffn"],
        vocab=counts["vocab"],
        tied=_flag(values, "tied"),
        weight_type=_weight_type(values.get("weight_type")),
        window=counts["window"],
        window_layers=counts["window_layers"] or 0,
    )
    if dims.window is not None and counts["window_layers"] is None:
        raise ConfigError("window_layers", None, "is missing; say how many layers see only the window")
    dims.kv_shape()
    return dims


def _head_dim(counts: Mapping[str, int | None]) -> int:
    head_dim, hidden, heads = counts["head_dim"], counts["hidden"], counts["heads"]
    if head_dim is not None:
        return head_dim
    if hidden is None or heads is None:
        raise ConfigError("head_dim", None, "is missing; give it, or hidden and heads")
    if hidden % heads:
        raise ConfigError("head_dim", None, f"is missing; heads {heads} don't divide hidden {hidden}")
    return hidden // heads


def _count(values: Mapping[object, object], name: str) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    least = 0 if name in _MAY_BE_ZERO else 1
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_COUNT:
        raise ConfigError(name, value, f"must be a whole number in {least}…{_MAX_COUNT}")
    return value


def _flag(values: Mapping[object, object], name: str) -> bool:
    value = values.get(name, False)
    if not isinstance(value, bool):
        raise ConfigError(name, value, "must be true or false")
    return value


def _weight_type(value: object) -> str:
    if value is None:
        return "F16"
    if not isinstance(value, str) or value.upper() not in QUANT_TYPES:
        raise ConfigError("weight_type", value, f"must be one of {', '.join(QUANT_TYPES)}")
    return value.upper()
