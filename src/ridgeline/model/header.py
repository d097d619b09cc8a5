"""What a model file says of itself before any of its weights is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ridgeline.config.model import ModelConfig
from ridgeline.formats.gguf import open_gguf
from ridgeline.model.arch import model_config


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """Dimensions, and the sum of the stored tensors' bytes (not the file's size)."""

    config: ModelConfig
    weights_bytes: int


def read_model_header(path: Path) -> ModelHeader:
    """Read metadata and the table of tensors; of the tensors themselves, nothing.

    Raises:
        ModelFileError: the file can't be read, or is of an architecture that is not supported.
    """
    with open_gguf(path) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        config = model_config(file.metadata, path=path, shapes=shapes, rope_factors=None)
        return ModelHeader(config, sum(info.size_bytes for info in file.tensors.values()))
