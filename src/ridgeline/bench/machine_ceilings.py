"""Rounds of micro-benchmarks: the fastest round is the ceiling, the others tell how steady the machine is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from ridgeline.bench.synthetic_model import synthetic_bytes
from ridgeline.config.machine import CpuCache
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.kernels.machine_ops import MachineBench
from ridgeline.perf.hardware import CacheLevel, HardwareProfile, Source

MAX_SPREAD = 1.25
"""Fastest over median round of a ceiling; above it the machine was not steady."""
_MIB = 2**20
_MIN_ARENA_BYTES = 128 * _MIB
_CACHES_PER_ARENA = 4
_UNIT_BYTES = 256
_PART_READ_BYTES = 48 * _MIB
_MATRIX_BYTES = 512 * 1024
_MATRIX_COLS = 1024
_PANEL_ROWS = 32
_HEAD_DIM, _ATTENTION_ROWS, _ATTENTION_TILES, _ATTENTION_PASSES = 64, 24, 16, 60
_ATTENTION_FLOPS = 4 * _HEAD_DIM + 4  # per row and position, as perf/op_costs counts them
_NUM_JOBS = 2000
_HIGHEST_NAMED_THREADS = 8


@dataclass(slots=True)
class CeilingRounds:
    """Rates and durations of all rounds by name.

    `dram 2` (bytes/s with 2 threads), `L3` (bytes/s of all caches of a level), `matmul Q4_1 8` (FLOP/s at 8
    tokens), `attention` (FLOP/s), `barrier` (seconds).
    """

    num_threads: int
    caches: Sequence[CpuCache]
    formats: Sequence[str]
    token_counts: Sequence[int]
    num_passes: int
    samples: dict[str, list[float]] = field(default_factory=dict)

    def measure(self) -> None:
        """One round of everything."""
        for num_threads in thread_counts(self.num_threads):
            arena_bytes = self._arena_bytes()
            bench = MachineBench(num_threads, arena_bytes)
            seconds, _ = bench.stream_s(arena_bytes, num_passes=self.num_passes)
            self._add(f"dram {num_threads}", arena_bytes / seconds)
            if num_threads == self.num_threads:
                self._measure_caches(bench)
                self._measure_kernels(bench)

    def profile(self, name: str, memory_bytes: int) -> HardwareProfile:
        """The ceilings: the best of all rounds."""
        matmul = {
            each: tuple((count, max(self.samples[f"matmul {each} {count}"])) for count in self.token_counts)
            for each in self.formats
        }
        by_threads = {n: max(self.samples[f"dram {n}"]) for n in thread_counts(self.num_threads)}
        return HardwareProfile(
            name=name,
            source=Source.MEASURED,
            num_threads=self.num_threads,
            dram_bytes_per_s=by_threads[self.num_threads],
            dram_bytes_per_s_by_threads=by_threads,
            matmul_flops_per_s=matmul,
            attention_flops_per_s=max(self.samples["attention"]),
            memory_bytes=memory_bytes,
            caches=tuple(
                CacheLevel(
                    name=f"L{cache.level}",
                    size_bytes=cache.size_bytes * cache.num_caches,
                    read_bytes_per_s=max(self.samples[f"L{cache.level}"]),
                )
                for cache in self.caches
                if f"L{cache.level}" in self.samples
            ),
            overheads_s={"barrier": min(self.samples["barrier"]), "call": min(self.samples["call"])},
            spread={name: (min(values), max(values)) for name, values in self.samples.items()},
            is_stable=self.num_rounds > 1 and not self.unsteady(),
        )

    @property
    def num_rounds(self) -> int:
        """Rounds measured; one alone tells nothing of how steady the machine is."""
        return max((len(values) for values in self.samples.values()), default=0)

    def unsteady(self) -> list[str]:
        """Names of the ceilings whose best round is far from the median one."""
        return [
            name
            for name, values in self.samples.items()
            if name not in ("barrier", "call") and max(values) > MAX_SPREAD * median(values)
        ]

    def _measure_caches(self, bench: MachineBench) -> None:
        """Each thread reads a quarter of its share of a level, more than the level before holds."""
        inner_bytes = 0
        for cache in self.caches:
            share = cache.size_bytes * cache.num_caches // (4 * self.num_threads)
            part_bytes = share // _UNIT_BYTES * _UNIT_BYTES
            if cache.level > 1 and part_bytes > inner_bytes:
                passes = max(_PART_READ_BYTES // part_bytes, 2)
                seconds, _ = bench.parts_s(part_bytes, num_passes=passes)
                self._add(f"L{cache.level}", self.num_threads * part_bytes / seconds)
            inner_bytes = cache.size_bytes

    def _measure_kernels(self, bench: MachineBench) -> None:
        for name in self.formats:
            quant_type = QUANT_TYPES[name]
            rows = _MATRIX_BYTES // quant_type.size_bytes(_MATRIX_COLS) // _PANEL_ROWS * _PANEL_ROWS
            data = synthetic_bytes(quant_type, rows * _MATRIX_COLS)
            for count in self.token_counts:
                x = np.resize(np.linspace(-1, 1, 4093, dtype=np.float32), (count, _MATRIX_COLS))
                passes = max(1, 16 // count) + 1
                seconds, _ = bench.matmul_s(quant_type, data, x, num_passes=passes)
                self._add(f"matmul {name} {count}", 2 * count * rows * _MATRIX_COLS / seconds)
        seconds, weights = bench.attend_s(
            head_dim=_HEAD_DIM,
            num_rows=_ATTENTION_ROWS,
            num_tiles=_ATTENTION_TILES,
            num_passes=_ATTENTION_PASSES,
        )
        self._add("attention", weights * _ATTENTION_FLOPS / seconds)
        self._add("barrier", bench.dispatch_s(_NUM_JOBS)[0])
        self._add("call", _call_s())

    def _arena_bytes(self) -> int:
        last_bytes = max((cache.size_bytes * cache.num_caches for cache in self.caches), default=0)
        return max(_MIN_ARENA_BYTES, _CACHES_PER_ARENA * last_bytes)

    def _add(self, name: str, value: float) -> None:
        self.samples.setdefault(name, []).append(value)


def _call_s() -> float:
    """Seconds of a native call from Python that does next to nothing."""
    bench = MachineBench(1, _UNIT_BYTES)
    started_at_s = time.perf_counter()
    for _ in range(_NUM_JOBS):
        bench.dispatch_s(1)
    return (time.perf_counter() - started_at_s) / _NUM_JOBS


def thread_counts(num_threads: int) -> list[int]:
    """1 … N where that is few, else powers of two and N."""
    if num_threads <= _HIGHEST_NAMED_THREADS:
        return list(range(1, num_threads + 1))
    return [*(2**power for power in range((num_threads - 1).bit_length())), num_threads]


def unsteady_note(samples: Mapping[str, Sequence[float]], names: Sequence[str]) -> list[str]:
    """One line on the ceilings whose best round is far above the median one; none where there are none.

    Of a single round it says that nobody knows.
    """
    if all(len(values) < 2 for values in samples.values()):
        return ["there was time for one round only: how steady the machine was is not known"]
    if not names:
        return []
    excess = {name: max(samples[name]) / median(samples[name]) - 1 for name in names}
    worst = max(excess, key=lambda name: excess[name])
    return [
        f"{len(names)} of {len(samples)} ceilings were over {MAX_SPREAD - 1:.0%} better in their best round "
        f"than in the median one; most of all {worst}: {excess[worst]:.0%}"
    ]
