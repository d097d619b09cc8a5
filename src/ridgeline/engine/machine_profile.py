"""The hardware profile that belongs to this machine, thread count and build."""

from __future__ import annotations

from pathlib import Path

from ridgeline.config.machine import cpu_limits, cpu_name
from ridgeline.hub.hardware_store import HardwareKey, load_hardware, save_hardware
from ridgeline.kernels.machine_ops import native_build_id
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.hardware_document import document_of_profile, profile_of_document


def hardware_key(num_threads: int) -> HardwareKey:
    """The key of this machine and build with so many threads."""
    return HardwareKey(
        cpu=cpu_name(),
        num_cores=cpu_limits().physical_cores,
        num_threads=num_threads,
        build=native_build_id(),
    )


def stored_profile(home: Path, num_threads: int) -> HardwareProfile | None:
    """The profile measured earlier for this machine, thread count and build; None where there is none."""
    document = load_hardware(hardware_key(num_threads), home)
    if document is None:
        return None
    try:
        return profile_of_document(document["profile"])
    except (KeyError, TypeError, ValueError):
        return None


def store_profile(home: Path, profile: HardwareProfile, *, measured_at: str) -> Path:
    """Keep the profile for this machine and build; returns the file.

    Raises:
        OSError: it can't be written.
    """
    key = hardware_key(profile.num_threads)
    return save_hardware(key, home, document_of_profile(profile), measured_at=measured_at)
