"""Models by name: lookup, and sizes that their authors publish."""

from __future__ import annotations

import pytest

from ridgeline.errors import ConfigError
from ridgeline.perf.named_models import NAMED_MODELS, NamedModel, find_named_model, nearest_named_models


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-0.5b", 494_032_768),
        ("mistral-7b", 7_248_023_552),
        ("llama-3.2-1b", 1_235_814_400),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-0.6b", 596_049_920),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_parameters_as_published(name: str, parameters: int) -> None:
    """The safetensors' totals; float32 counts four bytes for each, so bytes / 4 are parameters."""
    assert find_named_model(name).shape("F32").weights_bytes == 4 * parameters


@pytest.mark.parametrize("model", NAMED_MODELS.values(), ids=lambda model: model.name)
def test_every_model_has_a_source_and_makes_a_shape(model: NamedModel) -> None:
    assert model.source.endswith("/config.json")
    assert model.shape().num_heads % model.shape().num_kv_heads == 0
    assert model.context_len >= 4096


@pytest.mark.parametrize(
    ("asked", "name"),
    [("Llama_3_8B", "llama-3-8b"), ("Meta-Llama-3-8B-Instruct", "llama-3-8b"), ("QWEN2.5-7b", "qwen2.5-7b")],
)
def test_lookup_forgives_case_and_separators(asked: str, name: str) -> None:
    assert find_named_model(asked).name == name


def test_unknown_names_are_none_with_neighbours() -> None:
    assert find_named_model("llama-9-8b") is None
    assert "llama-3-8b" in nearest_named_models("llama-9-8b")
    assert nearest_named_models("zzzz") == []


def test_rows_that_are_no_whole_quant_blocks_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be a multiple of 256"):
        find_named_model("smollm2-135m").shape("Q4_K")
