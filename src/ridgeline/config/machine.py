"""What this process may use of the machine: cores and memory, limits of its cgroup included."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_NO_LIMIT_BYTES = 1 << 62  # cgroup v1 writes "unlimited" as a number near 2^63


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """Memory in bytes: of the machine, free on it, and of the tightest cgroup (None: no limit)."""

    machine_bytes: int
    free_bytes: int
    cgroup_limit_bytes: int | None
    cgroup_free_bytes: int | None

    @property
    def available_bytes(self) -> int:
        """What this process may still take."""
        if self.cgroup_free_bytes is None:
            return self.free_bytes
        return min(self.free_bytes, self.cgroup_free_bytes)


def cpu_limits() -> CpuLimits:
    """Read the limits of the CPUs as they are now."""
    allowed = os.sched_getaffinity(0)
    return CpuLimits(len(allowed), _num_physical_cores(allowed), _quota_cores())


def available_memory_bytes() -> int:
    """Memory this process may still take: the machine's, or what its cgroups leave."""
    return memory_limits().available_bytes


def memory_limits() -> MemoryLimits:
    """Read the limits of the memory as they are now."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    machine_bytes = page_bytes * os.sysconf("SC_PHYS_PAGES")
    free_bytes = page_bytes * os.sysconf("SC_AVPHYS_PAGES")
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemAvailable:"):
            free_bytes = int(line.split()[1]) * 1024
    folders = cgroup_folders(_CGROUP, _read(Path("/proc/self/cgroup")) or "")
    limits = [limit for folder in folders if (limit := _cgroup_memory(folder)) is not None]
    return MemoryLimits(
        machine_bytes=machine_bytes,
        free_bytes=free_bytes,
        cgroup_limit_bytes=min((limit for limit, _ in limits), default=None),
        cgroup_free_bytes=min((free for _, free in limits), default=None),
    )


def cgroup_folders(root: Path, own_cgroups: str) -> list[Path]:
    """The folders whose memory limits bind a process: its own cgroup and all above it.

    `own_cgroups` is the text of /proc/self/cgroup. A container that sees only its own cgroup has it at
    `root`.
    """
    folders = [root, root / "memory"]
    for line in own_cgroups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers not in ("", "memory"):
            continue
        top = root / controllers if controllers else root
        parts = [part for part in path.split("/") if part and part != ".."]
        folders += [top.joinpath(*parts[: count + 1]) for count in range(len(parts))]
    return folders


def _cgroup_memory(folder: Path) -> tuple[int, int] | None:
    """(limit, what is left of it) in bytes; None where this cgroup sets none.

    Cached file pages count as left: the kernel drops them before it refuses memory.
    """
    limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
    used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
    if not (limit and limit.isdigit() and used and used.isdigit()) or int(limit) >= _NO_LIMIT_BYTES:
        return None
    cached_bytes = 0
    for line in (_read(folder / "memory.stat") or "").splitlines():
        if line.startswith(("inactive_file ", "total_inactive_file ")):
            cached_bytes = int(line.split()[1])
    return int(limit), max(int(limit) - max(int(used) - cached_bytes, 0), 0)


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
