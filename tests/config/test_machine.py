"""Memory limits: of the machine and of every cgroup above the process."""

from __future__ import annotations

from pathlib import Path

from ridgeline.config.machine import MemoryLimits, cgroup_folders, memory_limits


def test_this_machine_has_memory_and_its_limits_agree() -> None:
    limits = memory_limits()
    assert 0 < limits.available_bytes <= limits.machine_bytes


def test_the_tightest_limit_counts() -> None:
    none = MemoryLimits(machine_bytes=100, free_bytes=60, cgroup_limit_bytes=None, cgroup_free_bytes=None)
    tight = MemoryLimits(machine_bytes=100, free_bytes=60, cgroup_limit_bytes=50, cgroup_free_bytes=20)
    wide = MemoryLimits(machine_bytes=100, free_bytes=60, cgroup_limit_bytes=90, cgroup_free_bytes=80)
    assert [limits.available_bytes for limits in (none, tight, wide)] == [60, 20, 60]


def test_every_cgroup_above_the_process_is_looked_at() -> None:
    root = Path("/cg")
    assert cgroup_folders(root, "0::/a/b\n")[2:] == [root / "a", root / "a" / "b"]
    assert cgroup_folders(root, "5:cpu,cpuacct:/x\n7:memory:/y\n")[2:] == [root / "memory" / "y"]
    assert cgroup_folders(root, "0::/../../c\n")[2:] == [root / "c"]
    assert cgroup_folders(root, "") == [root, root / "memory"]
