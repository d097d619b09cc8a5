"""What a model file must hold: each lack and each excess is a ModelFileError that names it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from ridgeline.errors import ModelFileError
from ridgeline.formats.gguf import open_gguf
from ridgeline.model.weights import load_weights

SIZES = {"hidden": 32, "ffn": 64, "heads": 4, "kv_heads": 2, "vocab": 20}
SCALARS = {
    "block_count": 1,
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}


def shapes(arch: str) -> dict[str, tuple[int, ...]]:
    hidden, ffn, kv_size = 32, 64, 16
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (20, hidden), "output_norm.weight": (hidden,)}
    layer = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (hidden, hidden),
        "attn_k.weight": (kv_size, hidden),
        "attn_v.weight": (kv_size, hidden),
        "attn_output.weight": (hidden, hidden),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (ffn, hidden),
        "ffn_up.weight": (ffn, hidden),
        "ffn_down.weight": (hidden, ffn),
    }
    if arch == "qwen2":
        layer |= {"attn_q.bias": (hidden,), "attn_k.bias": (kv_size,), "attn_v.bias": (kv_size,)}
    if arch == "qwen3":
        layer |= {"attn_q_norm.weight": (8,), "attn_k_norm.weight": (8,)}
    return tensors | {f"blk.0.{name}": shape for name, shape in layer.items()}


@pytest.fixture
def write_model(tmp_path: Path):
    """Write a one-layer model of zeros, with keys replaced (None leaves one out) and shapes changed."""

    def write(
        arch: str = "llama",
        *,
        keys: dict[str, object] | None = None,
        change=lambda tensors: None,
        stored_as: gguf.GGMLQuantizationType | None = None,
    ) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, arch)
        scalars = SCALARS | {"attention.layer_norm_rms_epsilon": 1e-5} | (keys or {})
        for key, value in scalars.items():
            if isinstance(value, str):
                writer.add_string(f"{arch}.{key}", value)
            elif isinstance(value, float):
                writer.add_float32(f"{arch}.{key}", value)
            elif value is not None:
                writer.add_uint32(f"{arch}.{key}", value)
        tensors = shapes(arch)
        change(tensors)
        for name, shape in tensors.items():
            if stored_as is None or len(shape) == 1:
                writer.add_tensor(name, np.zeros(shape, np.float32))
                continue
            block, size = gguf.GGML_QUANT_SIZES[stored_as]
            data = np.zeros((shape[0], shape[1] // block * size), np.uint8)
            writer.add_tensor(name, data, raw_dtype=stored_as)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught, open_gguf(path) as file:
        load_weights(file)
    assert caught.value.path == path
    assert caught.value.remedy
    return caught.value.problem


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_a_whole_model_is_taken(write_model, arch) -> None:
    with open_gguf(write_model(arch)) as file:
        weights = load_weights(file)
        config = weights.config
        assert (config.arch, config.num_layers, config.head_dim, config.vocab_size) == (arch, 1, 8, 20)
        assert (config.has_qkv_bias, config.has_qk_norm) == (arch == "qwen2", arch == "qwen3")
        assert weights.stored_bytes == sum(4 * int(np.prod(shape)) for shape in shapes(arch).values())
        del weights


@pytest.mark.parametrize("arch", ["gpt2", "mamba", "llama4"])
def test_an_unknown_architecture_names_the_known_ones(write_model, arch) -> None:
    path = write_model(arch)
    assert arch in refusal(path)
    with pytest.raises(ModelFileError, match="llama, qwen2, qwen3"), open_gguf(path) as file:
        load_weights(file)


@pytest.mark.parametrize("name", sorted(shapes("llama")))
def test_a_missing_tensor_is_named(write_model, name) -> None:
    assert name in refusal(write_model(change=lambda tensors: tensors.pop(name)))


@pytest.mark.parametrize("name", [n for n in sorted(shapes("llama")) if n != "token_embd.weight"])
def test_a_wrong_shape_is_named_with_the_right_one(write_model, name) -> None:
    right = list(shapes("llama")[name])
    problem = refusal(write_model(change=lambda tensors: tensors.update({name: (*right[:-1], 7)})))
    assert name in problem
    assert str(right) in problem


@pytest.mark.parametrize(
    "name",
    ["blk.0.attn_output.bias", "blk.0.ffn_gate_exps.weight", "blk.1.attn_q.weight", "position_embd.weight"],
)
def test_a_tensor_that_would_go_unread_is_refused(write_model, name) -> None:
    assert name in refusal(write_model(change=lambda tensors: tensors.update({name: (32, 32)})))


def test_llama_with_biases_reads_them(write_model) -> None:
    biases = {f"blk.0.attn_{p}.bias": (n,) for p, n in (("q", 32), ("k", 16), ("v", 16))}
    with open_gguf(write_model(change=lambda tensors: tensors.update(biases))) as file:
        assert load_weights(file).config.has_qkv_bias


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, None) for key in SCALARS if key != "attention.head_count_kv"),
        ("attention.layer_norm_rms_epsilon", None),
        ("attention.layer_norm_rms_epsilon", 0.0),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("block_count", 0),
        ("block_count", 2**31),
        ("attention.head_count", 0),
        ("attention.head_count", 3),
        ("attention.head_count", 2**32 - 1),
        ("attention.head_count_kv", 3),
        ("attention.value_length", 4),
        ("rope.dimension_count", 7),
        ("rope.dimension_count", 4096),
        ("rope.freq_base", -1.0),
        ("rope.freq_base", 1e-40),
        ("attention.layer_norm_rms_epsilon", 1e30),
        ("attention.key_length", 4),
        ("context_length", 1),
        ("rope.scaling.type", "yarn"),
        ("embedding_length", "wide"),
        ("expert_count", 8),
    ],
)
def test_metadata_out_of_range_names_its_key(write_model, key, value) -> None:
    assert key in refusal(write_model(keys={key: value}))


def test_a_vector_with_nan_is_refused(tmp_path, write_model) -> None:
    path = write_model()
    with open_gguf(path) as file:
        offset = file.tensors["output_norm.weight"].offset
    data = bytearray(path.read_bytes())
    data[offset : offset + 4] = np.float32(np.nan).tobytes()
    path.write_bytes(data)
    assert "output_norm.weight" in refusal(path)


def test_a_format_without_kernels_is_converted_and_the_log_says_so(write_model, caplog) -> None:
    with open_gguf(write_model(stored_as=gguf.GGMLQuantizationType.IQ4_NL)) as file:
        weights = load_weights(file)
    assert weights.tensors["blk.0.ffn_up.weight"].quant_type.name == "Q8_0"
    (message,) = caplog.messages
    assert message == "model.gguf: 8 tensors stored as IQ4_NL are computed as Q8_0"
