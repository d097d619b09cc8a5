"""Models given as dimensions: weights equal to the files', and refusals that name the key."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.formats.gguf import open_gguf
from ridgeline.model.weights import expected_shapes, load_weights
from ridgeline.perf.model_dims import ModelDims, model_dims

WHOLE = {
    "layers": 30, "hidden": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "ffn": 1536, "vocab": 49152,
    "tied": True, "weight_type": "F32",
}  # fmt: skip


def test_weights_of_a_known_model() -> None:
    # 134,515,008 parameters, as the model's authors publish it
    assert model_dims(WHOLE).weights_bytes() == 4 * 134_515_008


@pytest.mark.parametrize("file", ["tiny-llama.gguf", "tiny-llama-untied.gguf"])
def test_weights_equal_the_tensors_that_the_forward_pass_reads(golden_fixtures: Path, file: str) -> None:
    config = load_weights(open_gguf(golden_fixtures / file)).config
    dims = ModelDims(
        layers=config.num_layers,
        hidden=config.hidden_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        ffn=config.ffn_size,
        vocab=config.vocab_size,
        tied=config.is_tied,
        weight_type="F32",
    )
    assert dims.weights_bytes() == sum(4 * math.prod(shape) for _, shape in expected_shapes(config))


def test_weight_types_have_their_own_sizes() -> None:
    as_f32, as_q8 = (model_dims(WHOLE | {"weight_type": t}).weights_bytes() for t in ("F32", "q8_0"))
    norms = 4 * 576 * 61
    assert (as_q8 - norms) * 32 * 4 == (as_f32 - norms) * 34


def test_head_dim_is_never_derived_when_given() -> None:
    assert model_dims({"layers": 1, "heads": 4, "kv_heads": 4, "hidden": 64, "head_dim": 40}).head_dim == 40
    assert model_dims({"layers": 1, "heads": 4, "kv_heads": 4, "hidden": 64}).head_dim == 16


def test_kv_heads_default_to_heads_and_weights_need_the_rest() -> None:
    dims = model_dims({"layers": 32, "heads": 32, "head_dim": 128})
    assert dims.kv_heads == 32
    assert dims.weights_bytes() is None
    assert dims.missing_for_weights == ("hidden", "ffn", "vocab")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"layers": None}, "layers"),
        ({"layers": 0}, "layers"),
        ({"layers": -3}, "layers"),
        ({"layers": 2.0}, "layers"),
        ({"layers": True}, "layers"),
        ({"layers": "30"}, "layers"),
        ({"layers": 10**30}, "layers"),
        ({"kv_heads": 0}, "kv_heads"),
        ({"kv_heads": 4}, "kv_heads"),
        ({"kv_heads": None, "heads": None}, "kv_heads"),
        ({"head_dim": None, "hidden": None}, "head_dim"),
        ({"head_dim": None, "hidden": 577}, "head_dim"),
        ({"head_dim": []}, "head_dim"),
        ({"tied": "yes"}, "tied"),
        ({"tied": 1}, "tied"),
        ({"weight_type": "Q3_K"}, "weight_type"),
        ({"weight_type": 16}, "weight_type"),
        ({"window": 128}, "window_layers"),
        ({"window_layers": 4}, "window"),
        ({"window": 128, "window_layers": 31}, "window_layers"),
        ({"num_layers": 30}, "dimensions"),
    ],
)
def test_wrong_values_are_refused_by_name(change: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model_dims(WHOLE | change)
    assert caught.value.field == field


@pytest.mark.parametrize("values", [[], 3, None, "layers"])
def test_what_is_no_object_is_refused(values: object) -> None:
    with pytest.raises(ConfigError, match="must be a JSON object"):
        model_dims(values)


def test_rows_must_be_whole_quant_blocks() -> None:
    with pytest.raises(ConfigError, match="hidden=576: must be a multiple of 256"):
        model_dims(WHOLE | {"weight_type": "Q4_K"}).weights_bytes()
