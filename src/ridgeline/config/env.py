"""The environment variables that ridgeline reads, each mirrored by an argument elsewhere."""

from __future__ import annotations

import os
from pathlib import Path


def home_dir() -> Path:
    """The cache directory: `$RIDGELINE_HOME`, else `$XDG_CACHE_HOME/ridgeline`, else `~/.cache/ridgeline`."""
    home = os.environ.get("RIDGELINE_HOME")
    if home:
        return Path(os.path.expanduser(home))
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "ridgeline"


def openai_api_key() -> str | None:
    """The key for a server under load: `$OPENAI_API_KEY`, mirrored by `--api-key`; None where it is empty."""
    return os.environ.get("OPENAI_API_KEY") or None


def server_api_keys() -> tuple[str, ...]:
    """The keys our server accepts: `$RIDGELINE_API_KEY`, separated by commas; mirrored by `--api-key`."""
    keys = os.environ.get("RIDGELINE_API_KEY", "").split(",")
    return tuple(key.strip() for key in keys if key.strip())
