"""What a file's header tells: the same dimensions, bytes and formats as its loaded weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.formats.gguf import open_gguf
from ridgeline.model.header import read_model_header
from ridgeline.model.weights import load_weights


@pytest.mark.parametrize(
    "model", ["tiny-llama", "tiny-llama-untied", "tiny-qwen2", "tiny-qwen3", "tiny-llama-q4_1"]
)
def test_the_header_tells_what_costs_depend_on(golden_fixtures: Path, model: str) -> None:
    path = golden_fixtures / f"{model}.gguf"
    header = read_model_header(path)
    weights = load_weights(open_gguf(path))
    assert header.shape is not None
    assert header.weights_bytes == header.shape.weights_bytes == weights.stored_bytes
    assert header.config == weights.config
    types = weights.tensors["blk.0.ffn_up.weight"].quant_type.name
    assert header.shape.matrix_types["up"][0] == types
