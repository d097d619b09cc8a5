"""HardwareProfile: what a machine can do at most, measured here or from a data sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ridgeline.perf.op_prices import OpPrices

UNCERTAIN = "These ceilings are not certain: run `ridgeline calibrate` when the machine is quiet."
"""What a report says of a profile that is not stable."""


class Source(StrEnum):
    """Where the figures of a profile come from."""

    MEASURED = "measured"
    DATA_SHEET = "data sheet"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLevel:
    """A cache as all threads together see it: size in bytes, read bandwidth in bytes/s."""

    name: str
    size_bytes: int
    read_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """The ceilings of one machine with `num_threads` threads (a GPU counts as one).

    `matmul_flops_per_s` maps a weight format to (tokens in the step, FLOP/s) pairs in rising order of tokens;
    a multiply-add is two FLOPs. `attention_flops_per_s` is that of attention. `overheads_s` are fixed
    costs by name (`step`, `barrier`, …).
    `spread` maps a ceiling's name to (lowest, highest) seen; `is_stable` says
    that they lie close together.
    """

    name: str
    source: Source
    num_threads: int
    dram_bytes_per_s: float
    matmul_flops_per_s: Mapping[str, Sequence[tuple[int, float]]]
    attention_flops_per_s: float
    dram_bytes_per_s_by_threads: Mapping[int, float] = field(default_factory=dict)
    memory_bytes: int | None = None
    caches: Sequence[CacheLevel] = ()
    overheads_s: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    is_stable: bool = True
    num_measurements: int = 1
    """How often it was measured; more than once where the first time was not certain."""
    notes: Sequence[str] = ()
    """For a data sheet: where each figure stands. Of a measurement: what limits or disturbed it."""
    prices: OpPrices | None = None
    """What the engine's own ops took here; None where only the ceilings are known."""
