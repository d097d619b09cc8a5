"""What a model file says of itself before any of its weights is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ridgeline.config.model import ModelConfig
from ridgeline.formats.gguf import open_gguf
from ridgeline.kernels.convert import computed_type
from ridgeline.model.arch import model_config
from ridgeline.perf.model_shape import ModelShape, model_shape_of


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """Dimensions, the sum of the stored tensors' bytes (not the file's size), and what costs depend on.

    `shape` is None where the file lacks tensors that such a model has.
    """

    config: ModelConfig
    weights_bytes: int
    shape: ModelShape | None


def read_model_header(path: Path) -> ModelHeader:
    """Read metadata and the table of tensors; of the tensors themselves, nothing.

    Raises:
        ModelFileError: the file can't be read, or is of an architecture that is not supported.
    """
    with open_gguf(path) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        config = model_config(file.metadata, path=path, shapes=shapes, rope_factors=None)
        types = {name: computed_type(info.quant_type.name) for name, info in file.tensors.items()}
        stored_bytes = sum(info.size_bytes for info in file.tensors.values())
    try:
        return ModelHeader(config, stored_bytes, model_shape_of(config, types))
    except KeyError:
        return ModelHeader(config, stored_bytes, None)
