"""The machine that `ridgeline plan` is asked about: this one, measured, or one by name."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ridgeline.bench.calibrate import stored_or_short
from ridgeline.config.checks import check_at_least
from ridgeline.config.env import home_dir
from ridgeline.config.machine import cpu_limits, memory_limits
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.hardware_entry import HardwareEntry
from ridgeline.perf.hardware_table import find_hardware
from ridgeline.perf.serving_plan import MEMORY_SHARE


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Memory, where that figure is from, and the table's entry; None is this machine."""

    memory_bytes: int
    memory_words: str
    entry: HardwareEntry | None

    def profile(self, num_threads: int | None) -> HardwareProfile:
        """The ceilings; this machine is measured for 3 s where nothing is stored."""
        if self.entry is not None:
            return self.entry.profile()
        if num_threads is not None:
            check_at_least("num_threads", num_threads, 1)
        return stored_or_short(
            home_dir(),
            num_threads or cpu_limits().num_threads,
            report=lambda line: print(line, file=sys.stderr),
        )

    def kv_memory_bytes(self, weights_bytes: int | None) -> int:
        """What K and V may take beside the weights: 90 % of the memory, less these."""
        return int(self.memory_bytes * MEMORY_SHARE) - (weights_bytes or 0)


def find_machine(hardware: str | None, memory_bytes: int | None) -> Machine:
    """This machine, or the entry of that name; `memory_bytes` in place of its own.

    Raises:
        ConfigError: no machine of that name is known.
    """
    entry = find_hardware(hardware) if hardware is not None else None
    if memory_bytes is not None:
        return Machine(
            memory_bytes=memory_bytes,
            memory_words=f"{size(memory_bytes)}, as --memory-bytes says",
            entry=entry,
        )
    if entry is not None:
        words = f"{size(entry.memory_bytes)}, {entry.sources['memory']}"
        return Machine(memory_bytes=entry.memory_bytes, memory_words=words, entry=entry)
    memory = memory_limits()
    words = f"{size(memory.available_bytes)} available of {size(memory.machine_bytes)}"
    if memory.cgroup_limit_bytes is not None:
        words += f"; the cgroup's limit is {size(memory.cgroup_limit_bytes)}"
    return Machine(memory_bytes=memory.available_bytes, memory_words=words, entry=None)


def size(num_bytes: int) -> str:
    """Bytes to the last one, and rounded where they are many."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6)):
        if abs(num_bytes) >= scale:
            return f"{num_bytes:,} B ({num_bytes / scale:.1f} {unit})"
    return f"{num_bytes:,} B"
