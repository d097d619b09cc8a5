"""step_costs equals, to the last FLOP and byte, what a forward pass counts while it runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.perf.counting_forward import CountingForward

from ridgeline.config.model import ModelConfig
from ridgeline.formats.gguf import open_gguf
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.kernels.tensor import QuantTensor
from ridgeline.model.arch import ARCHITECTURES
from ridgeline.model.weights import expected_shapes, load_weights
from ridgeline.perf.model_shape import model_shape_of
from ridgeline.perf.op_costs import step_costs
from ridgeline.perf.step_shape import StepRow, StepShape

SCALES_AT = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}
MAX_TOKENS = 64


def random_tensor(name: str, shape: tuple[int, ...], quant_type: str, seed: int) -> QuantTensor:
    """Random bytes, with the fp16 scales of quant blocks small and finite."""
    rng, kind = np.random.default_rng(seed), QUANT_TYPES[quant_type]
    if kind.quant_block_size == 1:
        values = rng.normal(0, 0.2, shape).astype(np.float32)
        as_stored = {
            "F32": values,
            "F16": values.astype(np.float16),
            "BF16": (values.view(np.uint32) >> 16).astype(np.uint16),
        }[quant_type]
        return QuantTensor(name, kind, shape, as_stored.reshape(-1).view(np.uint8))
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // kind.quant_block_size, kind.type_size), np.uint8)
    for offset in SCALES_AT.get(quant_type, (0,)):
        blocks[:, offset : offset + 2] = np.full(len(blocks), 1e-3, np.float16).view(np.uint8).reshape(-1, 2)
    return QuantTensor(name, kind, shape, blocks.reshape(-1))


@st.composite
def configs(draw) -> ModelConfig:
    """Any architecture of the table, with or without biases of its own, of a few thousand weights."""
    arch = ARCHITECTURES[draw(st.sampled_from(sorted(ARCHITECTURES)))]
    head_dim, num_kv_heads = draw(st.sampled_from([8, 16, 32])), draw(st.integers(1, 2))
    heads_per_kv_head = draw(st.integers(1, 3))
    num_heads = num_kv_heads * heads_per_kv_head
    while num_heads * head_dim % 32:
        num_heads *= 2
    rope_dim = draw(st.sampled_from([head_dim // 2, head_dim]))
    return ModelConfig(
        name="random",
        arch=arch.name,
        num_layers=draw(st.integers(1, 3)),
        hidden_size=draw(st.sampled_from([32, 64])),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_size=draw(st.sampled_from([32, 96])),
        vocab_size=draw(st.integers(5, 40)),
        context_len=MAX_TOKENS,
        rms_norm_eps=1e-5,
        rope_dim=rope_dim,
        rope_is_neox=arch.rope_is_neox,
        rope_inv_freq=tuple(0.5**i for i in range(rope_dim // 2)),
        has_qkv_bias=arch.has_qkv_bias or draw(st.booleans()),
        has_qk_norm=arch.has_qk_norm,
        is_tied=draw(st.booleans()),
    )


def tensors_of(config: ModelConfig, types, seed: int) -> dict[str, QuantTensor]:
    return {
        name: random_tensor(name, shape, "F32" if len(shape) == 1 else types(name), seed + i)
        for i, (name, shape) in enumerate(expected_shapes(config))
    }


@st.composite
def steps(draw) -> list[StepRow]:
    """Ragged: decodes, prompts, chunks after a cached prefix, rows with prompt logprobs or no logits."""
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        computed = draw(st.sampled_from([0, 1, 7, 8, 16, 25]) | st.integers(0, 30))
        scheduled = draw(st.sampled_from([1, 1, 8, 9, 17]) | st.integers(1, 20))
        rows.append(StepRow(computed, scheduled, draw(st.integers(0, scheduled))))
    return rows


def types_of(tensors: dict[str, QuantTensor]) -> dict[str, str]:
    return {name: tensor.quant_type.name for name, tensor in tensors.items()}


SMALL_TYPES = sorted(name for name, kind in QUANT_TYPES.items() if kind.quant_block_size <= 32)


@settings(max_examples=20)
@given(configs(), steps(), st.data())
def test_costs_are_those_counted(config: ModelConfig, rows: list[StepRow], data) -> None:
    tensors = tensors_of(config, lambda _: data.draw(st.sampled_from(SMALL_TYPES)), seed=1)
    num_windowed = data.draw(st.integers(0, config.num_layers))
    window = data.draw(st.integers(1, 40)) if num_windowed else None
    forward = CountingForward(
        config, tensors, max_tokens=MAX_TOKENS, window=window, num_window_layers=num_windowed
    )
    _, counted = forward.run(rows, [[1] * row.num_scheduled_tokens for row in rows])
    shape = replace(model_shape_of(config, types_of(tensors)), window=window, num_window_layers=num_windowed)
    assert step_costs(shape, StepShape(rows)) == counted


@pytest.mark.parametrize("quant_type", ["Q4_K", "Q5_K", "Q6_K"])
def test_costs_of_k_quants_are_those_counted(quant_type: str) -> None:
    config = ModelConfig(
        name="k", arch="llama", num_layers=1, hidden_size=256, num_heads=8, num_kv_heads=2, head_dim=32,
        ffn_size=256, vocab_size=16, context_len=MAX_TOKENS, rms_norm_eps=1e-5, rope_dim=32,
        rope_is_neox=False, rope_inv_freq=(1.0,) * 16,
    )  # fmt: skip
    tensors = tensors_of(config, lambda _: quant_type, seed=3)
    rows = [StepRow(3, 2, 1), StepRow(0, 3, 0)]
    _, counted = CountingForward(config, tensors, max_tokens=MAX_TOKENS).run(rows, [[1] * 2, [1] * 3])
    assert step_costs(model_shape_of(config, types_of(tensors)), StepShape(rows)) == counted


@pytest.mark.parametrize(
    "model", ["tiny-llama", "tiny-llama-untied", "tiny-qwen2", "tiny-qwen3", "tiny-llama-q4_1"]
)
def test_what_counts_is_the_forward_pass(golden_fixtures, new_forward, logits_of, model: str) -> None:
    path = golden_fixtures / f"{model}.gguf"
    weights = load_weights(open_gguf(path))
    ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    forward = CountingForward(weights.config, weights.tensors, max_tokens=MAX_TOKENS)
    first, _ = forward.run([StepRow(0, 9, 9)], [ids[:9]])
    second, counted = forward.run([StepRow(9, 2, 2)], [ids[9:]])
    (expected,) = logits_of(new_forward(path, "native"), [ids])
    spread = expected.std()
    np.testing.assert_allclose(np.concatenate([first, second]), expected, rtol=0, atol=1e-2 * spread)
    shape = model_shape_of(weights.config, types_of(dict(weights.tensors)))
    assert step_costs(shape, StepShape([StepRow(9, 2, 2)])) == counted
    assert shape.weights_bytes == weights.stored_bytes
