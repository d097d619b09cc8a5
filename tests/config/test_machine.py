"""Memory limits: of the machine and of every cgroup above the process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ridgeline.config import machine
from ridgeline.config.machine import (
    CpuCache,
    CpuLimits,
    MemoryLimits,
    cgroup_folders,
    cpu_caches,
    cpu_quota,
    memory_limits,
)


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


def test_the_quota_of_a_cgroup_is_read_in_both_versions(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cpu_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(tmp_path) is None
    (tmp_path / "cpu.cfs_quota_us").write_text("250000\n")
    assert cpu_quota(tmp_path) == 2.5


def test_the_cgroup_of_the_cpu_controller_is_found() -> None:
    root = Path("/cg")
    folders = cgroup_folders(root, "3:cpu,cpuacct:/a\n4:memory:/b\n0::/c\n", "cpu")
    assert folders[2:] == [root / "cpu,cpuacct" / "a", root / "c"]


def test_threads_follow_the_least_limit_and_the_reason_names_it() -> None:
    limits = CpuLimits(affinity_cores=8, physical_cores=4, quota_cores=1.5)
    assert limits.num_threads == 1
    assert limits.reason == "8 CPUs allowed, 4 physical cores, a quota of 1.5 CPUs"
    assert CpuLimits(1, 4, None).num_threads == 1
    assert CpuLimits(4, 4, 0.5).num_threads == 1
    assert "no quota" in CpuLimits(1, 4, None).reason


@pytest.mark.parametrize(
    ("quota", "num_threads"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None)]
)
def test_a_quota_of_any_cgroup_above_limits_the_threads(
    tmp_path: Path, monkeypatch, quota: str, num_threads: int | None
) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    limits = machine.cpu_limits()
    assert limits.num_threads == (num_threads or min(limits.affinity_cores, limits.physical_cores))
    assert ("no quota" in limits.reason) == (num_threads is None)


def test_more_threads_than_fit_are_told_with_the_quota() -> None:
    limits = CpuLimits(affinity_cores=8, physical_cores=4, quota_cores=2.0)
    assert limits.excess_note(2) is None
    assert limits.excess_note(3) == (
        "3 threads are more than the 2 that fit here (8 CPUs allowed, 4 physical cores, a quota of 2 CPUs): "
        "they wait for each other"
    )


def test_throttling_is_the_highest_count_of_the_cgroups_above(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.throttled_periods() is None
    assert machine.throttled_since(None) == 0
    (tmp_path / "cpu.stat").write_text("nr_periods 50\nnr_throttled 7\nthrottled_time 9\n")
    assert machine.throttled_periods() == 7
    assert machine.throttled_since(4) == 3
    assert machine.throttled_since(9) == 0


def test_caches_are_counted_once_however_many_cpus_share_them(tmp_path: Path) -> None:
    for cpu in os.sched_getaffinity(0):
        for index, (level, kind, size, shared) in enumerate(
            ((1, "Data", "32K", cpu), (1, "Instruction", "32K", cpu), (3, "Unified", "1024K", "all"))
        ):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(f"{text}\n")
    num_cpus = len(os.sched_getaffinity(0))
    assert cpu_caches(tmp_path) == [CpuCache(1, 32 * 1024, num_cpus), CpuCache(3, 1024 * 1024, 1)]
    assert cpu_caches(tmp_path / "none") == []
