"""What a pull tells while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PullProgress:
    """What is being done, and how far it is in bytes where that is known."""

    status: str
    done_bytes: int | None = None
    total_bytes: int | None = None


ProgressCallback = Callable[[PullProgress], None]
