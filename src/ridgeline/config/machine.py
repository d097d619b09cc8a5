"""What this process may use of the machine: cores and memory, limits of its cgroup included."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class CpuLimits:
    """Cores by each of the three limits; `quota_cores` is None where there is none."""

    affinity_cores: int
    physical_cores: int
    quota_cores: float | None

    @property
    def num_threads(self) -> int:
        """Default threads: the least of the three, at least 1."""
        limits = [self.affinity_cores, self.physical_cores]
        if self.quota_cores is not None:
            limits.append(int(self.quota_cores))
        return max(1, min(limits))


def cpu_limits() -> CpuLimits:
    """Read the limits of the CPUs as they are now."""
    allowed = os.sched_getaffinity(0)
    return CpuLimits(len(allowed), _num_physical_cores(allowed), _quota_cores())


def available_memory_bytes() -> int:
    """Memory this process may still take: the machine's, or what its cgroup leaves."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    limit = _read(_CGROUP / "memory.max") or _read(_CGROUP / "memory/memory.limit_in_bytes")
    used = _read(_CGROUP / "memory.current") or _read(_CGROUP / "memory/memory.usage_in_bytes")
    if limit and limit.isdigit() and used and used.isdigit():
        available = min(available, max(int(limit) - int(used), 0))
    return available


def _num_physical_cores(allowed: set[int]) -> int:
    cores = set()
    for cpu in allowed:
        siblings = _read(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
        cores.add(siblings or str(cpu))
    return len(cores)


def _quota_cores() -> float | None:
    quota_v2 = (_read(_CGROUP / "cpu.max") or "").split()
    if len(quota_v2) == 2 and quota_v2[0].isdigit():
        return int(quota_v2[0]) / int(quota_v2[1])
    quota_us = _read(_CGROUP / "cpu/cpu.cfs_quota_us")
    period_us = _read(_CGROUP / "cpu/cpu.cfs_period_us")
    if quota_us and period_us and quota_us.isdigit() and int(period_us) > 0:
        return int(quota_us) / int(period_us)
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
