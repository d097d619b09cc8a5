"""What the peers' scripts record alike: the file, the machine, how quiet it was, and samples."""

import hashlib
import math
import os
import statistics
import time


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def cpu_model():
    try:
        with open("/proc/cpuinfo") as f:
            return next(x.split(":", 1)[1].strip() for x in f if x.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown"


def cpu_seconds():
    """(busy or stolen seconds of all CPUs, seconds of this process, wall seconds)"""
    try:
        with open("/proc/stat") as f:
            t = [int(x) for x in f.readline().split()[1:9]]
        busy = (sum(t) - t[3] - t[4]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        busy = float("nan")
    return busy, time.process_time(), time.perf_counter()


def others_share(before, after):
    """Fraction of all CPUs that went to something else: near 0 on a quiet machine."""
    busy, own, wall = (b - a for a, b in zip(before, after, strict=True))
    share = (busy - own) / (wall * (os.cpu_count() or 1))
    return None if math.isnan(share) else round(max(share, 0.0), 3)


def summary(runs, others):
    digits = [float(f"{x:.5g}") for x in runs]
    return {
        "median": float(f"{statistics.median(runs):.5g}"),
        "min": min(digits),
        "max": max(digits),
        "runs": digits,
        "others_cpu": others,
    }
