"""What a load run asks of a server, before any wire format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """One request. `prompt` is text or token ids, or None where `messages` is given.

    `num_prompt_tokens` is what was asked for (None: not known before a tokenizer has seen it);
    `arrived_at_s` is the trace's instant from its first request, None without one. `extra` goes into the
    body as it is; `slos` are limits in ms of this request alone.
    """

    prompt: str | Sequence[int] | None
    messages: Sequence[Mapping[str, object]] | None = None
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    arrived_at_s: float | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    slos: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival, and what a reader must know of how they came about."""

    requests: Sequence[LoadRequest]
    notes: Sequence[str] = ()
