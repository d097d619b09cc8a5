"""Both forward passes against Hugging Face's logits of tiny random models, and against themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

LENGTHS = (1, 17, 70)
FLOAT_MODELS = (
    "tiny-llama",
    "tiny-llama-untied",
    "tiny-llama-rope-factors",
    "tiny-llama-rope-linear",
    "tiny-llama-bf16",
    "tiny-qwen2",
    "tiny-qwen3",
)
QUANTISED_MODELS = (
    "tiny-llama-q4_0",
    "tiny-llama-q4_1",
    "tiny-llama-q5_0",
    "tiny-llama-q5_1",
    "tiny-llama-q8_0",
    "tiny-llama-k",
)


def oracle(fixtures: Path, model: str) -> list[tuple[list[int], np.ndarray]]:
    with np.load(fixtures / "tiny-logits.npz") as arrays:
        return [(arrays[f"{model}.ids_{n}"].tolist(), arrays[f"{model}.logits_{n}"]) for n in LENGTHS]


def kl_divergence(expected: np.ndarray, logits: np.ndarray) -> float:
    def log_softmax(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64)
        x -= x.max(axis=-1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))

    p, q = log_softmax(expected), log_softmax(logits)
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


@pytest.mark.parametrize("model", FLOAT_MODELS + QUANTISED_MODELS)
def test_reference_logits_are_hugging_faces(new_forward, logits_of, golden_fixtures, model) -> None:
    forward = new_forward(golden_fixtures / f"{model}.gguf", "reference")
    cases = oracle(golden_fixtures, model)
    for (_, expected), logits in zip(cases, logits_of(forward, [ids for ids, _ in cases]), strict=True):
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("model", FLOAT_MODELS + QUANTISED_MODELS)
def test_native_distributions_are_hugging_faces_within_its_gates(
    new_forward, logits_of, golden_fixtures, model
) -> None:
    forward = new_forward(golden_fixtures / f"{model}.gguf", "native")
    for ids, expected in oracle(golden_fixtures, model):
        (logits,) = logits_of(forward, [ids])
        best_two = np.sort(expected, axis=-1)[:, -2:]
        clear = best_two[:, 1] - best_two[:, 0] > 0.75
        assert kl_divergence(expected, logits) <= 4e-3
        assert np.array_equal(logits.argmax(axis=-1)[clear], expected.argmax(axis=-1)[clear])


@pytest.mark.parametrize(
    "model", ["tiny-llama", "tiny-llama-q4_1", "tiny-llama-k", "tiny-qwen2", "tiny-qwen3"]
)
@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_native_logits_are_the_same_bits_in_any_company(
    new_forward, logits_of, golden_fixtures, model, chunk
) -> None:
    path = golden_fixtures / f"{model}.gguf"
    ids = oracle(golden_fixtures, model)[2][0]
    (alone,) = logits_of(new_forward(path, "native", num_threads=1), [ids])
    others = [ids[k : k + 20 + 5 * k] for k in range(7)]
    for num_threads, block_size in ((1, 16), (2, 32), (2, 64)):
        forward = new_forward(path, "native", num_threads=num_threads, block_size=block_size)
        together = logits_of(forward, [*others, ids], chunk=chunk, block_size=block_size)
        assert np.array_equal(together[-1].view(np.int32), alone.view(np.int32))


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_reference_logits_are_the_same_within_1e_4_in_any_company(
    new_forward, logits_of, golden_fixtures, chunk
) -> None:
    path = golden_fixtures / "tiny-llama.gguf"
    ids = oracle(golden_fixtures, "tiny-llama")[2][0]
    (alone,) = logits_of(new_forward(path, "reference"), [ids])
    together = logits_of(
        new_forward(path, "reference", block_size=16), [ids[3:30], ids], chunk=chunk, block_size=16
    )
    np.testing.assert_allclose(together[-1], alone, rtol=0, atol=1e-4)
