"""What the machine can do, measured natively; for benchmarks and calibration only."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import EngineError
from ridgeline.formats.quants import QuantType
from ridgeline.kernels import _native


def native_build_id() -> str:
    """Tells one build of the native module from another: the first digits of its file's SHA-256."""
    assert _native.__file__ is not None
    return hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest()[:12]


def read_seconds(buffer: NDArray[np.uint8], num_threads: int) -> float:
    """Seconds in which `num_threads` threads read `buffer` once, each its own parts of it."""
    return _native.read_seconds(buffer, num_threads)


class MachineBench:
    """Micro-benchmarks on `num_threads` warm threads and `num_bytes` of memory like the weights' own.

    The memory lies on huge pages where the system has them; its 8-byte words hold their numbers. Each
    measurement returns seconds and a check that only complete work gives.
    """

    def __init__(self, num_threads: int, num_bytes: int) -> None:
        self.num_threads = num_threads
        self._bench = _native.MachineBench(num_threads, num_bytes)

    def stream_s(self, num_bytes: int, *, num_passes: int) -> tuple[float, int]:
        """Fastest of `num_passes` passes in which all threads together read the first `num_bytes`.

        The check is the sum of the words read in a pass, modulo 2^64.
        """
        return self._bench.stream(num_bytes, num_passes)

    def parts_s(self, part_bytes: int, *, num_passes: int) -> tuple[float, int]:
        """Mean of `num_passes` passes of each thread over its own part of `part_bytes`.

        The check is the sum of the words read in all passes, modulo 2^64.
        """
        return self._bench.read_parts(part_bytes, num_passes)

    def dispatch_s(self, num_jobs: int) -> tuple[float, int]:
        """Fastest of `num_jobs` jobs (fewer after 50 ms) in which all threads meet and go on.

        The check is how many met in all of them: the threads times the jobs.
        """
        return self._bench.dispatch(num_jobs)

    def attend_s(
        self, *, head_dim: int, num_rows: int, num_tiles: int, num_passes: int
    ) -> tuple[float, float]:
        """Mean of `num_passes` walks of each thread's `num_rows` queries over `num_tiles` tiles of 32.

        K, V and queries are zeros; the check is the sum of softmax weights: positions × rows × threads.
        """
        return self._bench.attend(head_dim, num_rows, num_tiles, num_passes)

    def matmul_s(
        self, quant_type: QuantType, data: NDArray[np.uint8], x: NDArray[np.float32], *, num_passes: int
    ) -> tuple[float, NDArray[np.float32]]:
        """Fastest of `num_passes` products x · Wᵀ, packing and quantising not counted, and the product.

        `data` holds the stored rows of W, as many as it has bytes for; x is [T, cols].

        Raises:
            EngineError: the data are no whole rows.
        """
        row_bytes = quant_type.size_bytes(x.shape[1])
        out = np.empty((len(x), data.size // row_bytes), np.float32)
        try:
            return self._bench.matmul(data, quant_type.type_id, x, out, num_passes), out
        except ValueError as error:
            raise EngineError(str(error)) from error
