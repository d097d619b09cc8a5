"""Measured hardware profiles in the cache directory, one file for each machine, thread count and build.

::

    <home>/hardware/amd-epyc-2c-2t-0.1.0-1a2b3c4d5e6f.json
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareKey:
    """What a measurement holds for: another CPU, core count, thread count or build needs its own.

    `build` is ridgeline's version and the native module's build id.
    """

    cpu: str
    num_cores: int
    num_threads: int
    build: str

    @property
    def file_name(self) -> str:
        """Readable, and safe in a path."""
        text = f"{self.cpu}-{self.num_cores}c-{self.num_threads}t-{self.build}"
        return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-") + ".json"


def hardware_path(key: HardwareKey, home: Path) -> Path:
    """Where the profile of `key` lies once it is measured."""
    return home / "hardware" / key.file_name


def save_hardware(key: HardwareKey, home: Path, profile: Mapping[str, Any], *, measured_at: str) -> Path:
    """Write a profile's document, whole or not at all; `measured_at` is its time stamp, ISO 8601.

    Raises:
        OSError: it can't be written.
    """
    path = hardware_path(key, home)
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"format": _FORMAT, "key": asdict(key), "measured_at": measured_at, "profile": profile}
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", suffix=".new", delete=False) as file:
        json.dump(document, file, indent=1)
    os.replace(file.name, path)
    return path


def load_hardware(key: HardwareKey, home: Path) -> dict[str, Any] | None:
    """The stored document: `key`, `measured_at` and `profile`; None where there is none for this key.

    A file that is damaged, of another format or of another key counts as none: it is measured again.
    """
    try:
        document = json.loads(hardware_path(key, home).read_text())
    except (OSError, ValueError):
        return None
    is_ours = (
        isinstance(document, dict)
        and document.get("format") == _FORMAT
        and document.get("key") == asdict(key)
        and isinstance(document.get("profile"), dict)
        and isinstance(document.get("measured_at"), str)
    )
    return document if is_ours else None
