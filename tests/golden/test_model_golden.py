"""Both executors on the real model against Hugging Face in float32 (`make_model_oracle.py`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline import LLM, SamplingParams
from ridgeline.model.forward import Forward

pytestmark = pytest.mark.golden

FIXTURES = Path(__file__).parent / "fixtures"
GREEDY = json.loads((FIXTURES / "greedy.json").read_text(encoding="utf-8"))
CLEAR_MARGIN = 0.75
LogprobMatrix = np.ndarray
NewForward = Callable[..., Forward]
LogitsOf = Callable[..., list[np.ndarray]]


@pytest.fixture(scope="module")
def oracle() -> dict[str, np.ndarray]:
    with np.load(FIXTURES / "logprobs.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def reference(model_path: Path) -> Iterator[LLM]:
    with LLM(str(model_path), executor="reference", kv_cache_bytes=2**29) as llm:
        yield llm


def all_logprobs(forward: Forward, logits_of: LogitsOf, token_ids: list[int]) -> LogprobMatrix:
    """Log-probabilities [N − 1, vocab] of every token after each of the first N − 1 positions."""
    (logits,) = logits_of(forward, [token_ids[:-1]], chunk=256)
    forward.close()
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return logits


@pytest.fixture(scope="module")
def reference_logprobs(
    new_forward: NewForward, logits_of: LogitsOf, model_path: Path, oracle: dict[str, np.ndarray]
) -> LogprobMatrix:
    return all_logprobs(new_forward(model_path, "reference"), logits_of, oracle["token_ids"].tolist())


@pytest.fixture(scope="module")
def native_logprobs(
    new_forward: NewForward, logits_of: LogitsOf, model_path: Path, oracle: dict[str, np.ndarray]
) -> LogprobMatrix:
    return all_logprobs(new_forward(model_path, "native"), logits_of, oracle["token_ids"].tolist())


def greedy_ids(llm: LLM, cases: list[dict[str, Any]]) -> list[list[int]]:
    prompts = [{"prompt_token_ids": case["prompt_token_ids"]} for case in cases]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=GREEDY["max_tokens"]))
    return [output.outputs[0].token_ids for output in outputs]


def test_reference_greedy_tokens_are_the_oracles(reference: LLM) -> None:
    cases = GREEDY["cases"]
    assert len(cases) >= 8
    for case, ids in zip(cases, greedy_ids(reference, cases), strict=True):
        assert ids == case["output_token_ids"], case["name"]


def test_reference_prompts_are_the_oracles(reference: LLM) -> None:
    for case in GREEDY["cases"]:
        if case["kind"] == "chat":
            ids = reference.tokenizer.apply_chat_template(case["messages"], add_generation_prompt=True)
        else:
            ids = reference.tokenizer.encode_prompt(case["prompt"])
        assert ids == case["prompt_token_ids"], case["name"]


def test_reference_logprobs_are_the_oracles(
    reference_logprobs: LogprobMatrix, oracle: dict[str, np.ndarray]
) -> None:
    assert len(oracle["token_ids"]) >= 1000
    top = np.take_along_axis(reference_logprobs, oracle["top_ids"][:-1].astype(np.int64), axis=1)
    np.testing.assert_allclose(top, oracle["top_logprobs"][:-1], rtol=0, atol=1e-3)


def test_native_stays_near_the_oracle(
    reference_logprobs: LogprobMatrix, native_logprobs: LogprobMatrix, oracle: dict[str, np.ndarray]
) -> None:
    """Kullback-Leibler over the whole vocabulary, against the reference that the test above pins down."""
    expected, got = reference_logprobs.astype(np.float64), native_logprobs.astype(np.float64)
    divergence = (np.exp(expected) * (expected - got)).sum(axis=1)
    assert divergence.mean() <= 4e-3
    agrees = got.argmax(axis=1) == oracle["argmax_ids"][:-1]
    assert agrees.mean() >= 0.955
    assert agrees[oracle["margins"][:-1] > CLEAR_MARGIN].all()
    next_ids = oracle["token_ids"][1:, None].astype(np.int64)
    perplexity = np.exp(-np.take_along_axis(got, next_ids, axis=1).mean())
    assert perplexity == pytest.approx(float(oracle["perplexity"]), rel=0.01)
