"""NativeForward: one native call per step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.kernels.ops import NativeModel
from ridgeline.model.batch import InputBatch
from ridgeline.model.kv_cache import new_native_kv_cache
from ridgeline.model.weights import ModelWeights


class NativeForward:
    """The forward pass of the native core, on packed weights and a float16 KV cache."""

    def __init__(self, weights: ModelWeights, *, num_blocks: int, block_size: int, num_threads: int) -> None:
        config = weights.config
        self._model = NativeModel(config, weights.tensors, block_size=block_size, num_threads=num_threads)
        self._kv_cache = new_native_kv_cache(config, num_blocks=num_blocks, block_size=block_size)
        self._vocab_size = config.vocab_size
        self._logits = np.empty((0, config.vocab_size), np.float32)

    def run(self, batch: InputBatch) -> tuple[NDArray[np.float32], dict[str, float]]:
        """See `Forward.run`; the logits live in a buffer that the next call reuses."""
        num_rows = len(batch.logits_rows)
        if num_rows > len(self._logits):
            self._logits = np.empty((num_rows, self._vocab_size), np.float32)
        logits = self._logits[:num_rows]
        op_seconds = self._model.forward(
            token_ids=batch.token_ids,
            positions=batch.positions,
            query_start_loc=batch.query_start_loc,
            seq_lens=batch.seq_lens,
            block_tables=batch.block_tables,
            block_copies=batch.block_copies,
            logits_rows=batch.logits_rows,
            kv_cache=self._kv_cache,
            logits=logits,
        )
        return logits, op_seconds

    def close(self) -> None:
        """Stop the threads and drop the weights and the cache."""
        self._model.close()
        self._kv_cache = self._kv_cache[:0].copy()
        self._logits = self._logits[:0].copy()
