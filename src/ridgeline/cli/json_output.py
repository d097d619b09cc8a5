"""Writing a command's JSON, to a file or to stdout."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ridgeline.errors import ConfigError

JsonTarget = Annotated[str | None, Parameter(allow_leading_hyphen=True)]
"""A file's path, or - for stdout."""


def check_target(target: str | None) -> None:
    """Raise `ConfigError` now when `write_json` could not write there later."""
    if target is None or target == "-":
        return
    path = Path(target)
    place = path if path.exists() else path.parent
    if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise ConfigError("json", target, "can't be written there; give a file in an existing directory")


def write_json(target: str, document: object) -> None:
    """Write `document` to the file `target`, or to stdout for `-`.

    Raises:
        ConfigError: the file can't be written.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if target == "-":
        is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        sys.stdout.write(text if is_utf8 and _is_encodable(text) else _ascii(document))
        return
    try:
        Path(target).write_text(text if _is_encodable(text) else _ascii(document), encoding="utf-8")
    except OSError as error:
        raise ConfigError("json", target, f"can't be written: {error.strerror}") from None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _ascii(document: object) -> str:
    return json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False) + "\n"
