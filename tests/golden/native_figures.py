"""How near the native executor is to float32: the figures of README.md beside llama.cpp's.

    python native_figures.py MODEL.gguf [TOPIC ...]

Topics are those of pydoc_data.topics, at most 1,300 tokens of each; without one, the fixture's text. The
float32 distribution is the reference executor's, which test_model_golden.py holds to transformers'.
"""

from __future__ import annotations

import sys
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from ridgeline.formats.gguf import open_gguf
from ridgeline.model.batch import InputBatch
from ridgeline.model.forward import Forward
from ridgeline.model.native_forward import NativeForward
from ridgeline.model.reference_forward import ReferenceForward
from ridgeline.model.weights import ModelWeights, load_weights
from ridgeline.tokenizer.gguf_tokenizer import build_tokenizer

FIXTURE = Path(__file__).parent / "fixtures" / "logprobs.npz"
BLOCK_SIZE = 32
MAX_TOKENS = 1300


def log_softmax(forward: Forward, token_ids: np.ndarray) -> np.ndarray:
    """Log-probabilities float64[N, vocab] after each token, computed in one step."""
    num_tokens = len(token_ids)
    positions = np.arange(num_tokens, dtype=np.int32)
    batch = InputBatch(
        token_ids=token_ids,
        positions=positions,
        query_start_loc=np.asarray([0, num_tokens], np.int32),
        seq_lens=np.asarray([num_tokens], np.int32),
        block_tables=np.arange(-(-num_tokens // BLOCK_SIZE), dtype=np.int32)[None],
        block_copies=np.zeros((0, 2), np.int32),
        logits_rows=positions,
    )
    logits = forward.run(batch)[0].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def report(weights: ModelWeights, name: str, token_ids: np.ndarray) -> None:
    """Print mean KL, top-1 agreement, the largest margin lost, and perplexity."""
    sizes = {"num_blocks": 64, "block_size": BLOCK_SIZE}
    expected = log_softmax(ReferenceForward(weights, lambda: 0.0, **sizes), token_ids[:-1])
    got = log_softmax(NativeForward(weights, num_threads=2, **sizes), token_ids[:-1])
    agrees = expected.argmax(axis=1) == got.argmax(axis=1)
    best_two = np.sort(expected, axis=1)[:, -2:]
    rows = np.arange(len(agrees))
    perplexities = [np.exp(-x[rows, token_ids[1:]].mean()) for x in (expected, got)]
    divergence = (np.exp(expected) * (expected - got)).sum(axis=1)
    print(
        f"{name}: {len(token_ids)} tokens, mean KL {divergence.mean():.2e}, "
        f"same best token {agrees.mean():.2%}, largest margin lost {np.diff(best_two)[~agrees].max():.2f}, "
        f"perplexity {perplexities[1]:.3f} ({perplexities[1] / perplexities[0] - 1:+.2%})"
    )


def main(path: Path, names: list[str]) -> None:
    """Report on the fixture's text, or on topics."""
    file = open_gguf(path)
    weights = load_weights(file)
    if not names:
        with np.load(FIXTURE) as arrays:
            report(weights, "identifiers", arrays["token_ids"])
    tokenizer = build_tokenizer(file.metadata, path=path)
    for name in names:
        report(weights, name, np.asarray(tokenizer.encode(topics[name])[:MAX_TOKENS], np.int32))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
