"""How long a request may take: from its header, its body or the server's settings."""

from __future__ import annotations

import math

from ridgeline.config.server import ServerConfig
from ridgeline.errors import RequestError

HEADER = "x-request-timeout"


def request_timeout_s(header: str | None, field: float | None, config: ServerConfig) -> float | None:
    """Seconds from arrival to the end of a request; None sets no end.

    `field` is the body's `timeout`, `header` the text of `x-request-timeout`; the shorter of both counts.

    Raises:
        RequestError: one of them is no number of seconds > 0, or above `max_request_timeout_s`.
    """
    asked = [
        _checked(name, value, config.max_request_timeout_s)
        for name, value in ((HEADER, header), ("timeout", field))
        if value is not None
    ]
    return min(asked) if asked else config.request_timeout_s


def _checked(name: str, value: object, max_s: float) -> float:
    try:
        seconds = (
            float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
        )
    except (ValueError, OverflowError):
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise RequestError(name, value, "must be a number of seconds > 0")
    if seconds > max_s:
        raise RequestError(name, value, f"this server allows at most {max_s:g} s")
    return seconds
