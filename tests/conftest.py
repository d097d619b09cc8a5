"""What tests of several rooms need: the real model's file, and places of small inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeline.config.env import home_dir
from ridgeline.formats.gguf import open_gguf
from ridgeline.hub.store import resolve_model
from ridgeline.model.batch import InputBatch
from ridgeline.model.forward import Forward
from ridgeline.model.native_forward import NativeForward
from ridgeline.model.reference_forward import ReferenceForward
from ridgeline.model.weights import load_weights


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The real model's file; `make model` fetches it."""
    return resolve_model("smollm2-135m-instruct", home_dir())


@pytest.fixture(scope="session")
def golden_fixtures() -> Path:
    """The folder of the committed oracle data."""
    return Path(__file__).parent / "golden" / "fixtures"


@pytest.fixture(scope="session")
def tiny_model(golden_fixtures: Path) -> Path:
    """A random llama-type model of a few hundred kilobytes."""
    return golden_fixtures / "tiny-llama.gguf"


# Tests assert behaviour, never time. The same examples at every run, so that a failure is the change's;
# `--hypothesis-profile explore` draws others.
hypothesis.settings.register_profile("fixed", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile("fixed")

BLOCK_SIZE, NUM_BLOCKS = 32, 64

NewForward = Callable[..., Forward]
LogitsOf = Callable[..., list[NDArray[np.float32]]]


@pytest.fixture(scope="session")
def new_forward() -> NewForward:
    """Open a model file on the named executor."""

    def make(path: Path, executor: str, *, num_threads: int = 2, block_size: int = BLOCK_SIZE) -> Forward:
        weights = load_weights(open_gguf(path))
        if executor == "reference":
            return ReferenceForward(weights, lambda: 0.0, num_blocks=NUM_BLOCKS, block_size=block_size)
        return NativeForward(weights, num_blocks=NUM_BLOCKS, block_size=block_size, num_threads=num_threads)

    return make


@pytest.fixture(scope="session")
def logits_of() -> LogitsOf:
    """Logits of every position of several sequences, computed together in steps of `chunk` tokens each.

    Sequence s uses every num_sequences-th block from block s on, so that tables are never contiguous.
    """

    def run(
        forward: Forward,
        sequences: Sequence[Sequence[int]],
        *,
        chunk: int = 1000,
        block_size: int = BLOCK_SIZE,
    ) -> list[NDArray[np.float32]]:
        num_blocks = NUM_BLOCKS // len(sequences)
        tables = [[s + i * len(sequences) for i in range(num_blocks)] for s in range(len(sequences))]
        parts: list[list[NDArray[np.float32]]] = [[] for _ in sequences]
        for start in range(0, max(map(len, sequences)), chunk):
            live = [s for s, ids in enumerate(sequences) if start < len(ids)]
            pieces = [list(sequences[s][start : start + chunk]) for s in live]
            starts = np.cumsum([0, *map(len, pieces)])
            batch = InputBatch(
                token_ids=np.concatenate([np.asarray(piece, np.int32) for piece in pieces]),
                positions=np.concatenate([np.arange(start, start + len(p), dtype=np.int32) for p in pieces]),
                query_start_loc=starts.astype(np.int32),
                seq_lens=np.asarray([start + len(p) for p in pieces], np.int32),
                block_tables=np.asarray([tables[s] for s in live], np.int32),
                block_copies=np.zeros((0, 2), np.int32),
                logits_rows=np.arange(starts[-1], dtype=np.int32),
            )
            logits, _ = forward.run(batch)
            for index, s in enumerate(live):
                parts[s].append(logits[starts[index] : starts[index + 1]].copy())
        return [np.concatenate(p) for p in parts]

    return run
