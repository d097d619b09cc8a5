"""Well-known models by name: their dimensions as their authors' config.json has them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ridgeline.perf.model_dims import ModelDims
from ridgeline.perf.model_shape import ModelShape, model_shape_of_dims

_NUM_NEAREST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """Dimensions with 16-bit weights, what they leave out, and the repository whose config.json has them."""

    name: str
    dims: ModelDims
    context_len: int
    source: str
    has_qkv_bias: bool = False
    has_qk_norm: bool = False

    def shape(self, weight_type: str = "F16") -> ModelShape:
        """The shape with all matrices in one quant type.

        Raises:
            ConfigError: rows are no whole quant blocks of it.
        """
        shape = model_shape_of_dims(replace(self.dims, weight_type=weight_type), name=self.name)
        return replace(shape, has_qkv_bias=self.has_qkv_bias, has_qk_norm=self.has_qk_norm)


def _model(
    name: str, source: str, dims: tuple[int, ...], *, context_len: int, tied: bool = False, family: str = ""
) -> NamedModel:
    """`dims`: layers, hidden, heads, KV heads, head_dim, ffn, vocab."""
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab = dims
    return NamedModel(
        name=name,
        dims=ModelDims(
            layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, ffn=ffn,
            vocab=vocab, tied=tied,
        ),
        context_len=context_len,
        source=f"{source}/config.json",
        has_qkv_bias=family == "qwen2",
        has_qk_norm=family == "qwen3",
    )  # fmt: skip


_LLAMA_3_8B = (32, 4096, 32, 8, 128, 14336, 128256)
_LLAMA_3_70B = (80, 8192, 64, 8, 128, 28672, 128256)

NAMED_MODELS: Mapping[str, NamedModel] = MappingProxyType(
    {
        each.name: each
        for each in (
            _model("llama-2-7b", "meta-llama/Llama-2-7b-hf",
                   (32, 4096, 32, 32, 128, 11008, 32000), context_len=4096),
            _model("llama-2-13b", "meta-llama/Llama-2-13b-hf",
                   (40, 5120, 40, 40, 128, 13824, 32000), context_len=4096),
            _model("llama-2-70b", "meta-llama/Llama-2-70b-hf",
                   (80, 8192, 64, 8, 128, 28672, 32000), context_len=4096),
            _model("llama-3-8b", "meta-llama/Meta-Llama-3-8B", _LLAMA_3_8B, context_len=8192),
            _model("llama-3-70b", "meta-llama/Meta-Llama-3-70B", _LLAMA_3_70B, context_len=8192),
            _model("llama-3.1-8b", "meta-llama/Llama-3.1-8B", _LLAMA_3_8B, context_len=131072),
            _model("llama-3.1-70b", "meta-llama/Llama-3.1-70B", _LLAMA_3_70B, context_len=131072),
            _model("llama-3.2-1b", "meta-llama/Llama-3.2-1B",
                   (16, 2048, 32, 8, 64, 8192, 128256), context_len=131072, tied=True),
            _model("llama-3.2-3b", "meta-llama/Llama-3.2-3B",
                   (28, 3072, 24, 8, 128, 8192, 128256), context_len=131072, tied=True),
            _model("mistral-7b", "mistralai/Mistral-7B-v0.3",
                   (32, 4096, 32, 8, 128, 14336, 32768), context_len=32768),
            _model("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B",
                   (24, 896, 14, 2, 64, 4864, 151936), context_len=32768, tied=True, family="qwen2"),
            _model("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B",
                   (28, 1536, 12, 2, 128, 8960, 151936), context_len=131072, tied=True, family="qwen2"),
            _model("qwen2.5-7b", "Qwen/Qwen2.5-7B",
                   (28, 3584, 28, 4, 128, 18944, 152064), context_len=131072, family="qwen2"),
            _model("qwen2.5-32b", "Qwen/Qwen2.5-32B",
                   (64, 5120, 40, 8, 128, 27648, 152064), context_len=131072, family="qwen2"),
            _model("qwen3-0.6b", "Qwen/Qwen3-0.6B",
                   (28, 1024, 16, 8, 128, 3072, 151936), context_len=40960, tied=True, family="qwen3"),
            _model("qwen3-8b", "Qwen/Qwen3-8B",
                   (36, 4096, 32, 8, 128, 12288, 151936), context_len=40960, family="qwen3"),
            _model("smollm2-135m", "HuggingFaceTB/SmolLM2-135M",
                   (30, 576, 9, 3, 64, 1536, 49152), context_len=8192, tied=True),
            _model("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B",
                   (24, 2048, 32, 32, 64, 8192, 49152), context_len=8192, tied=True),
        )
    }
)  # fmt: skip
"""Every named model; weights in 16 bits."""


def find_named_model(name: str) -> NamedModel | None:
    """The model of this name, whatever its case, separators and the ending `-instruct`; None: no such."""
    return {_key(each): model for each, model in NAMED_MODELS.items()}.get(_key(name))


def nearest_named_models(name: str) -> list[str]:
    """Names of the table that look like it, the nearest first."""
    keys = {_key(each): each for each in NAMED_MODELS}
    return [keys[near] for near in difflib.get_close_matches(_key(name), keys, n=_NUM_NEAREST)]


def _key(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum()).removeprefix("meta").removesuffix("instruct")
