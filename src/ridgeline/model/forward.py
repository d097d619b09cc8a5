"""Forward: the part of an executor that differs between native and reference."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.model.batch import InputBatch


class Forward(Protocol):
    """Computes a batch's K, V and logits."""

    def run(self, batch: InputBatch) -> tuple[NDArray[np.float32], dict[str, float]]:
        """Write K and V of every token; logits f32[R, vocab] of `logits_rows`, and op → seconds.

        The logits may be overwritten by the next call.
        """
        ...

    def close(self) -> None:
        """Give back threads and memory."""
        ...
