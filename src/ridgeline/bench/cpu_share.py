"""How much of the machine others took while we measured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds since boot: all that was spent by anyone, stolen time included, and by this process."""

    busy_s: float
    total_s: float
    own_s: float


def read_cpu() -> CpuReading:
    """Read /proc/stat (proc(5)) and this process's own times."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, idle, iowait, irq, softirq, steal = (int(field) for field in fields[:8])
    busy = user + nice + system + irq + softirq + steal
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    own = os.times()
    return CpuReading(busy / ticks_per_s, (busy + idle + iowait) / ticks_per_s, own.user + own.system)


def others_share(before: CpuReading, after: CpuReading) -> float:
    """Share of all CPU time between two readings that was neither idle nor ours, 0…1."""
    total_s = after.total_s - before.total_s
    others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return max(others_s, 0.0) / total_s if total_s > 0 else 0.0
