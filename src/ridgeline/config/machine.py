"""What this process may use of the machine: cores and memory, limits of its cgroup included."""

from __future__ import annotations

import os
import platform
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

    @property
    def reason(self) -> str:
        """Why `num_threads` is what it is."""
        quota = "no quota" if self.quota_cores is None else f"a quota of {self.quota_cores:g} CPUs"
        return f"{self.affinity_cores} CPUs allowed, {self.physical_cores} physical cores, {quota}"

    def excess_note(self, num_threads: int) -> str | None:
        """What is wrong with so many threads; None where they fit."""
        if num_threads <= self.num_threads:
            return None
        return (
            f"{num_threads} threads are more than the {self.num_threads} that fit here ({self.reason}): "
            "they wait for each other"
        )


@dataclass(frozen=True, slots=True)
class CpuCache:
    """One level of the CPUs' caches: bytes of each cache, and how many of them this process may use."""

    level: int
    size_bytes: int
    num_caches: int


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


def cpu_name() -> str:
    """The processor's name, as /proc/cpuinfo has it."""
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def cpu_caches(sys_cpu: Path = Path("/sys/devices/system/cpu")) -> list[CpuCache]:
    """The data caches of the CPUs this process may use, nearest first; empty where the system tells none."""
    sharers: dict[tuple[int, int], set[str]] = {}
    for cpu in os.sched_getaffinity(0):
        for index in sorted((sys_cpu / f"cpu{cpu}" / "cache").glob("index*")):
            size = _read(index / "size") or ""
            if _read(index / "type") in ("Data", "Unified") and size.endswith("K") and size[:-1].isdigit():
                key = int(_read(index / "level") or 0), int(size[:-1]) * 1024
                sharers.setdefault(key, set()).add(_read(index / "shared_cpu_list") or str(cpu))
    return [CpuCache(level, size, len(lists)) for (level, size), lists in sorted(sharers.items())]


def throttled_since(before: int | None) -> int:
    """How often a CPU quota has stopped us since `throttled_periods` said `before`; 0 where nobody tells."""
    now = throttled_periods()
    return max(now - before, 0) if now is not None and before is not None else 0


def throttled_periods() -> int | None:
    """How often a CPU quota has stopped this process's cgroup so far; None where the system does not tell."""
    counts = [
        int(line.split()[1])
        for folder in _own_cpu_cgroups()
        for line in (_read(folder / "cpu.stat") or "").splitlines()
        if line.startswith("nr_throttled ")
    ]
    return max(counts, default=None)


def cgroup_folders(root: Path, own_cgroups: str, controller: str = "memory") -> list[Path]:
    """The folders whose limits of `controller` bind a process: its own cgroup and all above it.

    `own_cgroups` is the text of /proc/self/cgroup. A container that sees only its own cgroup has it at
    `root`.
    """
    folders = [root, root / controller]
    for line in own_cgroups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
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


def _own_cpu_cgroups() -> list[Path]:
    return cgroup_folders(_CGROUP, _read(Path("/proc/self/cgroup")) or "", "cpu")


def _quota_cores() -> float | None:
    return min((q for folder in _own_cpu_cgroups() if (q := cpu_quota(folder)) is not None), default=None)


def cpu_quota(folder: Path) -> float | None:
    """CPUs that one cgroup allows; None where it sets no quota."""
    quota_v2 = (_read(folder / "cpu.max") or "").split()
    if len(quota_v2) == 2 and quota_v2[0].isdigit():
        return int(quota_v2[0]) / int(quota_v2[1])
    quota_us = _read(folder / "cpu.cfs_quota_us")
    period_us = _read(folder / "cpu.cfs_period_us")
    if quota_us and period_us and quota_us.isdigit() and int(period_us) > 0:
        return int(quota_us) / int(period_us)
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
