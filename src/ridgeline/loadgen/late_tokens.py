"""Which tokens were late, and the causes that the server's own event log gives for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.loadgen.stream import printable
from ridgeline.metrics.client_record import ClientRecord
from ridgeline.metrics.durations import icl_s, ttft_s

DEFAULT_TOP = 10


@dataclass(frozen=True, slots=True)
class LateToken:
    """Token `token` of a request (0 is the first): `seconds` after the one before, or as TTFT for token 0."""

    request_id: str
    token: int
    seconds: float


def find_late_tokens(
    records: Iterable[ClientRecord], slos_s: Mapping[str, float], top: int = DEFAULT_TOP
) -> list[LateToken]:
    """The `top` longest gaps between chunks, then every first token over its SLO, the latest first."""
    gaps: list[LateToken] = []
    firsts: list[LateToken] = []
    for record in records:
        token = 0
        for chunk, gap_s in zip(record.chunks, icl_s(record), strict=False):
            token += chunk.num_tokens
            gaps.append(LateToken(record.request_id, token, gap_s))
        first_s = ttft_s(record)
        limit_s = {**slos_s, **record.slos_s}.get("ttft")
        if first_s is not None and limit_s is not None and first_s > limit_s:
            firsts.append(LateToken(record.request_id, 0, first_s))
    gaps.sort(key=lambda late: late.seconds, reverse=True)
    return [*gaps[:top], *sorted(firsts, key=lambda late: late.seconds, reverse=True)]


def causes_of(document: object, token: int) -> Sequence[object]:
    """The entries of the server's `late_tokens` list for `token`; empty where it has none for it."""
    entries = document.get("late_tokens") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return []
    return [entry for entry in entries if isinstance(entry, dict) and entry.get("token") == token]


def cause_name(cause: object) -> str | None:
    """An entry's cause, with what a queue lacked; None: it names none."""
    if not isinstance(cause, Mapping) or not isinstance(cause.get("cause"), str):
        return None
    lack = cause.get("lack")
    return printable(f"{cause['cause']} ({lack})" if isinstance(lack, str) else cause["cause"])


def cause_words(cause: object) -> str | None:
    """The same with its share of the token's time, where that is told."""
    name = cause_name(cause)
    share = cause.get("share") if isinstance(cause, Mapping) else None
    if name is None or not isinstance(share, float) or not 0 <= share <= 1:
        return name
    return f"{name} {100 * share:.0f} %"
