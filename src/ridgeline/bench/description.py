"""What was measured, and on which machine."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from pathlib import Path

from ridgeline import __version__
from ridgeline.config.machine import cpu_name
from ridgeline.llm import LLM


def describe(llm: LLM) -> dict[str, object]:
    """Engine, model file, settings, machine and date of a run."""
    parts = llm.parts
    return {
        "engine": "ridgeline",
        "version": __version__,
        "model": parts.model_path.name,
        "model_sha256": hashlib.sha256(parts.model_path.read_bytes()).hexdigest(),
        "format": parts.weights_format,
        "threads": parts.num_threads,
        "settings": {
            "executor": parts.config.executor,
            "block_size": parts.limits.block_size,
            "max_model_len": parts.limits.max_model_len,
            "max_num_batched_tokens": parts.config.scheduler.max_num_batched_tokens,
            "enable_prefix_caching": parts.config.enable_prefix_caching,
        },
        "cpu": cpu_name(),
        "num_cpus": os.cpu_count(),
        "isa_flags": _isa_flags(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _isa_flags() -> list[str]:
    """Those of the processor's vector extensions that matter to kernels."""
    known = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "asimddp", "i8mm", "sve")
    flags = (_cpuinfo("flags") or _cpuinfo("Features")).split()
    return [flag for flag in known if flag in flags]


def _cpuinfo(field: str) -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""
