"""What `ridgeline plan` is asked about: a file, a named model or dimensions."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.config.env import home_dir
from ridgeline.errors import ConfigError, ModelNotFoundError
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.hub.catalogue import CATALOGUE
from ridgeline.hub.store import resolve_model
from ridgeline.model.header import read_model_header
from ridgeline.model.kv_cache import kv_shape
from ridgeline.perf.kv_memory import KVShape
from ridgeline.perf.model_dims import model_dims
from ridgeline.perf.model_shape import ModelShape, model_shape_of_dims
from ridgeline.perf.named_models import NAMED_MODELS, NamedModel, find_named_model, nearest_named_models
from ridgeline.perf.what_if_changes import WEIGHT_ALIASES

_KV_ITEMSIZE = 2  # float16


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model: `note` says why `weights_bytes` or `model` is None, or where dimensions come from."""

    name: str
    kv: KVShape
    weights_bytes: int | None
    context_len: int | None
    model: ModelShape | None
    note: str = ""

    def with_weights(self, quant_type: str) -> Subject:
        """The same with all matrices in one quant type.

        Raises:
            ConfigError: no such type, rows that are no whole quant blocks of it, unknown dimensions.
        """
        name = WEIGHT_ALIASES.get(quant_type.upper(), quant_type.upper())
        if name not in QUANT_TYPES:
            raise ConfigError("weights", quant_type, f"must be one of {', '.join(QUANT_TYPES).lower()}")
        if self.model is None:
            raise ConfigError("weights", quant_type, f"{self.name}'s own are {self.note}")
        model = self.model.with_weights(name)
        return replace(self, model=model, weights_bytes=model.weights_bytes)


def find_subject(model: str) -> Subject:
    """A catalogue name, a named model, an hf: name, a .gguf file or a .json file of dimensions.

    Raises:
        ConfigError: wrong dimensions.
        ModelFileError: the file can't be read.
        ModelNotFoundError: nothing of that name; the remedy names what is known.
    """
    if model.lower().endswith(".json"):
        return _of_dims(Path(model))
    named = find_named_model(model) if model not in CATALOGUE else None
    if named is not None:
        return _of_named(named)
    try:
        path = resolve_model(model, home_dir())
    except ModelNotFoundError as error:
        if "/" in model or model.endswith(".gguf"):
            raise
        near = ", ".join(nearest_named_models(model) or NAMED_MODELS)
        raise ModelNotFoundError(model, f"{error.remedy}; with known dimensions: {near}") from None
    header = read_model_header(path)
    return Subject(
        name=model if model in CATALOGUE else path.stem,
        kv=kv_shape(header.config, itemsize=_KV_ITEMSIZE),
        weights_bytes=header.weights_bytes,
        context_len=header.config.context_len,
        model=header.shape,
        note="" if header.shape is not None else "the file lacks tensors of its layers",
    )


def _of_named(named: NamedModel) -> Subject:
    shape = named.shape()
    return Subject(
        name=named.name,
        kv=shape.kv_shape,
        weights_bytes=shape.weights_bytes,
        context_len=named.context_len,
        model=shape,
        note=f"dimensions: {named.source}",
    )


def _of_dims(path: Path) -> Subject:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("model", str(path), f"can't be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError("model", str(path), f"is not JSON: {error}") from None
    dims = model_dims(values)
    missing = ", ".join(dims.missing_for_weights)
    return Subject(
        name=path.stem,
        kv=dims.kv_shape(_KV_ITEMSIZE),
        weights_bytes=dims.weights_bytes(),
        context_len=None,
        model=None if missing else model_shape_of_dims(dims, name=path.stem),
        note=f"unknown without {missing}" if missing else "",
    )
