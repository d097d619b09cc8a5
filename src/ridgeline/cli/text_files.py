"""Text files that options name."""

from __future__ import annotations

import os
from pathlib import Path

from ridgeline.errors import ConfigError


def read_lines(field: str, path: Path) -> list[str]:
    """The lines of a UTF-8 file.

    Raises:
        ConfigError: it can't be read, under the option's name `field`.
    """
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(field, str(path), f"can't be read: {error}") from None


def check_writable(**paths: Path | None) -> None:
    """Raise `ConfigError` now, under the option's name, when `write_text` could not write there later."""
    for field, path in paths.items():
        if path is None:
            continue
        place = path if path.exists() else path.parent
        if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
            raise ConfigError(field, str(path), "can't be written; give a file in an existing directory")


def write_text(field: str, path: Path, text: str) -> None:
    """Write a UTF-8 file.

    Raises:
        ConfigError: it can't be written, under the option's name `field`.
    """
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:  # a zero in a name is the latter
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(field, str(path), f"can't be written: {reason}") from None
