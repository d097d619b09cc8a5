"""How near the native executor is to float32: the figures of README.md beside llama.cpp's.

    python native_figures.py MODEL.gguf

The float32 distribution is the reference executor's, which test_model_golden.py holds to transformers'.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from ridgeline.formats.gguf import open_gguf
from ridgeline.model.batch import InputBatch
from ridgeline.model.forward import Forward
from ridgeline.model.native_forward import NativeForward
from ridgeline.model.reference_forward import ReferenceForward
from ridgeline.model.weights import load_weights

FIXTURE = Path(__file__).parent / "fixtures" / "logprobs.npz"
BLOCK_SIZE = 32


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


def main(path: Path) -> None:
    """Print mean KL, top-1 agreement, the largest margin lost, and perplexities."""
    weights = load_weights(open_gguf(path))
    with np.load(FIXTURE) as arrays:
        token_ids, margins = arrays["token_ids"], arrays["margins"][:-1]
    sizes = {"num_blocks": 64, "block_size": BLOCK_SIZE}
    expected = log_softmax(ReferenceForward(weights, lambda: 0.0, **sizes), token_ids[:-1])
    got = log_softmax(NativeForward(weights, num_threads=2, **sizes), token_ids[:-1])
    agrees = expected.argmax(axis=1) == got.argmax(axis=1)
    rows = np.arange(len(agrees))
    perplexities = [np.exp(-x[rows, token_ids[1:]].mean()) for x in (expected, got)]
    print(f"mean KL {(np.exp(expected) * (expected - got)).sum(axis=1).mean():.3e}")
    print(f"top-1 agreement {agrees.mean():.2%}, largest margin lost {margins[~agrees].max():.2f}")
    print(f"perplexity {perplexities[1]:.3f} ({perplexities[1] / perplexities[0] - 1:+.2%})")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
