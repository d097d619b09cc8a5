"""The tensors a ModelConfig asks for, found in a GGUF file and checked."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.config.model import ModelConfig
from ridgeline.errors import ModelFileError
from ridgeline.formats.gguf import GGUFFile
from ridgeline.formats.quants import CONVERTED_TYPES, QUANT_TYPES
from ridgeline.kernels.convert import converted
from ridgeline.kernels.dequantize import dequantize
from ridgeline.kernels.tensor import QuantTensor
from ridgeline.model.arch import model_config

_LOG = logging.getLogger("ridgeline")
_IGNORED = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd|.*\.rope_freqs\.weight")


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """A model's dimensions and its tensors in stored form, by GGUF name; vectors are F32."""

    config: ModelConfig
    tensors: Mapping[str, QuantTensor]

    @property
    def stored_bytes(self) -> int:
        """Sum of the tensors' stored bytes."""
        return sum(tensor.data.nbytes for tensor in self.tensors.values())

    @property
    def main_format(self) -> str:
        """The quant type that holds most of the bytes."""
        bytes_by_type: Counter[str] = Counter()
        for tensor in self.tensors.values():
            bytes_by_type[tensor.quant_type.name] += tensor.data.nbytes
        return bytes_by_type.most_common(1)[0][0]

    def dequantized(self, name: str) -> NDArray[np.float32]:
        """The tensor in float32, in its own shape."""
        tensor = self.tensors[name]
        return dequantize(tensor.quant_type, tensor.data, tensor.shape)


def load_weights(file: GGUFFile) -> ModelWeights:
    """Check every tensor of the model against its dimensions; matrices stay mapped, not copied.

    Raises:
        ModelFileError: metadata out of range, a tensor missing, of a wrong shape, or unknown.
    """
    shapes = {name: info.shape for name, info in file.tensors.items()}
    rope_factors = None
    if "rope_freqs.weight" in file.tensors:
        rope_factors = _as_f32(_stored(file, "rope_freqs.weight"), file.path).data.view(np.float32)
    config = model_config(file.metadata, path=file.path, shapes=shapes, rope_factors=rope_factors)
    tensors = {}
    for name, shape in expected_shapes(config):
        if name not in shapes:
            raise ModelFileError(file.path, f"tensor {name} is missing", "download or convert it again")
        if shapes[name] != shape:
            raise ModelFileError(
                file.path,
                f"tensor {name} has shape {list(shapes[name])}, the metadata asks for {list(shape)}",
                "download or convert it again",
            )
        tensor = _stored(file, name)
        tensors[name] = _as_f32(tensor, file.path) if len(shape) == 1 else tensor
    _refuse_unknown(file.path, config.arch, set(shapes) - set(tensors))
    _log_conversions(file, tensors)
    return ModelWeights(config, tensors)


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, row-major shape) of every tensor the forward pass reads, in its order."""
    hidden, q_size, kv_size, ffn = config.hidden_size, config.q_size, config.kv_size, config.ffn_size
    yield "token_embd.weight", (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"blk.{layer}"
        yield f"{prefix}.attn_norm.weight", (hidden,)
        for part, rows in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            yield f"{prefix}.attn_{part}.weight", (rows, hidden)
            if config.has_qkv_bias:
                yield f"{prefix}.attn_{part}.bias", (rows,)
        if config.has_qk_norm:
            yield f"{prefix}.attn_q_norm.weight", (config.head_dim,)
            yield f"{prefix}.attn_k_norm.weight", (config.head_dim,)
        yield f"{prefix}.attn_output.weight", (hidden, q_size)
        yield f"{prefix}.ffn_norm.weight", (hidden,)
        yield f"{prefix}.ffn_gate.weight", (ffn, hidden)
        yield f"{prefix}.ffn_up.weight", (ffn, hidden)
        yield f"{prefix}.ffn_down.weight", (hidden, ffn)
    yield "output_norm.weight", (hidden,)
    if not config.is_tied:
        yield "output.weight", (config.vocab_size, hidden)


def _stored(file: GGUFFile, name: str) -> QuantTensor:
    info = file.tensors[name]
    data = np.frombuffer(file.tensor_data(name), dtype=np.uint8)
    return converted(QuantTensor(name, info.quant_type, info.shape, data, is_mapped=True))


def _log_conversions(file: GGUFFile, tensors: Mapping[str, QuantTensor]) -> None:
    pairs = Counter(
        (file.tensors[name].quant_type.name, tensor.quant_type.name)
        for name, tensor in tensors.items()
        if file.tensors[name].quant_type.name in CONVERTED_TYPES
    )
    for (stored, used), count in sorted(pairs.items()):
        _LOG.warning("%s: %d tensors stored as %s are computed as %s", file.path.name, count, stored, used)


def _as_f32(tensor: QuantTensor, path: Path) -> QuantTensor:
    """Vectors are few and small: kept in float32 so that no kernel needs their stored type."""
    values = dequantize(tensor.quant_type, tensor.data, tensor.shape)
    if not np.all(np.isfinite(values)):
        raise ModelFileError(path, f"tensor {tensor.name} holds NaN or infinity", "download it again")
    return QuantTensor(tensor.name, QUANT_TYPES["F32"], tensor.shape, values.view(np.uint8).reshape(-1))


def _refuse_unknown(path: Path, arch: str, names: set[str]) -> None:
    """A tensor we would not read means a model we would compute wrongly."""
    unknown = sorted(name for name in names if not _IGNORED.fullmatch(name))
    if unknown:
        raise ModelFileError(
            path,
            f"tensor {unknown[0]} is not part of architecture {arch} as ridgeline knows it",
            "use a model without it",
        )
