"""What the machine can do, measured natively; for benchmarks only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ridgeline.kernels import _native


def read_seconds(buffer: NDArray[np.uint8], num_threads: int) -> float:
    """Seconds in which `num_threads` threads read `buffer` once, each its own parts of it."""
    return _native.read_seconds(buffer, num_threads)
