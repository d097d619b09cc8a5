"""Text files that options name."""

from __future__ import annotations

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


def write_text(field: str, path: Path, text: str) -> None:
    """Write a UTF-8 file.

    Raises:
        ConfigError: it can't be written, under the option's name `field`.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(field, str(path), f"can't be written: {error.strerror}") from None
