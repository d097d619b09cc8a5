"""Request traces: who asked when, with how many tokens, and got how many; as JSON lines.

One object a line, in any order of arrival::

    {"arrived_at_s": 0.25, "prompt_tokens": 161, "output_tokens": 338}

`arrived_at_s` counts from the trace's own start, in seconds ≥ 0; both counts are whole numbers ≥ 1. Other
keys are left alone, empty lines too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ridgeline.errors import ConfigError

_MAX_TOKENS = 1 << 32


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace."""

    arrived_at_s: float
    num_prompt_tokens: int
    num_output_tokens: int

    @property
    def num_resident_tokens(self) -> int:
        """Tokens whose K and V are kept at its end: all but the last, which nobody reads."""
        return self.num_prompt_tokens + self.num_output_tokens - 1


def parse_request_trace(lines: Iterable[str]) -> list[TraceRequest]:
    """Read a trace, sorted by arrival.

    Raises:
        ConfigError: a line is not such an object, or there is none.
    """
    requests = [_parse(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not requests:
        raise ConfigError("trace", "empty", "give at least one request a line")
    return sorted(requests, key=lambda request: request.arrived_at_s)


def format_request_trace(requests: Sequence[TraceRequest]) -> str:
    """The text that `parse_request_trace` reads."""
    return "".join(
        json.dumps(
            {
                "arrived_at_s": request.arrived_at_s,
                "prompt_tokens": request.num_prompt_tokens,
                "output_tokens": request.num_output_tokens,
            }
        )
        + "\n"
        for request in requests
    )


def _parse(line: str, number: int) -> TraceRequest:
    where = f"trace line {number}"
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(where, line.strip(), f"is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(where, values, "must be an object with arrived_at_s, prompt_tokens, output_tokens")
    arrived_at_s = values.get("arrived_at_s")
    if not isinstance(arrived_at_s, int | float) or isinstance(arrived_at_s, bool):
        raise ConfigError(f"{where}: arrived_at_s", arrived_at_s, "must be a number of seconds")
    if not (math.isfinite(arrived_at_s) and arrived_at_s >= 0):
        raise ConfigError(f"{where}: arrived_at_s", arrived_at_s, "must be finite and ≥ 0")
    counts = []
    for key in ("prompt_tokens", "output_tokens"):
        count = values.get(key)
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MAX_TOKENS:
            raise ConfigError(f"{where}: {key}", count, "must be a whole number ≥ 1")
        counts.append(count)
    return TraceRequest(float(arrived_at_s), *counts)
