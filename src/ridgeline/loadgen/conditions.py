"""Under which conditions a run was made: the client's machine, versions, clock."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import httptools

from ridgeline import __version__
from ridgeline.config.machine import cpu_limits


def run_conditions(model: str) -> dict[str, object]:
    """`threads` are the cores that this process may use, `clock` the one of all instants."""
    limits = cpu_limits()
    clock = time.get_clock_info("monotonic")
    return {
        "cpu": _cpu_name(),
        "threads": limits.affinity_cores,
        "cgroup_quota": limits.quota_cores,
        "model": model,
        "versions": {
            "ridgeline": __version__,
            "python": platform.python_version(),
            "httptools": getattr(httptools, "__version__", None),
        },
        "system": platform.platform(),
        "clock": f"{clock.implementation}, resolution {clock.resolution:g} s",
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
