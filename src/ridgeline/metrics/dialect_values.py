"""How other tools measure one request and sum up many; each from the tool's own code (see dialects).

In the formulas `s` is the send, t_1 and t_m the first and last chunk with tokens, c_1 and c_m the first and
last choice, empty ones included, k_1 the first chunk's tokens, N all tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter

from ridgeline.metrics.client_record import ClientRecord, Outcome

Instant = Callable[[ClientRecord], float | None]
Values = Callable[[ClientRecord], Sequence[float]]
"""Seconds of one request: none where the tool has no value, a 0 where it writes one."""
Weight = Callable[[ClientRecord], float]


def is_ok(record: ClientRecord) -> bool:
    """By our own rule: a good finish reason and a whole stream."""
    return record.outcome is Outcome.OK


def is_whole(record: ClientRecord) -> bool:
    """Good by our rule, or else an event stream that came to its end without a break, whatever was in it."""
    return is_ok(record) or (record.has_whole_stream and record.last_event_at_s is not None)


def is_whole_with_choices(record: ClientRecord) -> bool:
    """The same with at least one choice, be it empty."""
    return is_whole(record) and bool(_choices_at_s(record))


def has_tokens(record: ClientRecord) -> bool:
    """Good by our rule, with at least one chunk of tokens."""
    return is_ok(record) and bool(record.chunks)


def one(measure: Callable[[ClientRecord], float | None]) -> Values:
    """At most one value a request."""

    def values(record: ClientRecord) -> list[float]:
        value = measure(record)
        return [] if value is None else [value]

    return values


def or_zero(values: Values) -> Values:
    """A 0 where a request has no value."""
    return lambda record: values(record) or [0.0]


def since_send(end: Instant) -> Values:
    """`end` − s."""

    def values(record: ClientRecord) -> list[float]:
        at_s = end(record)
        return [] if at_s is None or record.sent_at_s is None else [at_s - record.sent_at_s]

    return values


def after_first(end: Instant, *, first: Instant | None = None, start: Instant | None = None) -> Values:
    """(end − first) / (N − 1), for N > 1; `first` is t_1, and `start` stands for it where there is none."""

    def values(record: ClientRecord) -> list[float]:
        first_s = (first or first_token)(record)
        start_s = first_s if first_s is not None or start is None else start(record)
        at_s, total = end(record), record.num_output_tokens
        if start_s is None or at_s is None or total is None or total < 2:
            return []
        return [(at_s - start_s) / (total - 1)]

    return values


def after_first_chunk(record: ClientRecord) -> list[float]:
    """(t_m − t_1) / (N − k_1) where per-chunk usage tells a k_1 in 1…N − 1, else / (N − 1); for N > 1."""
    total = record.num_output_tokens
    if not record.chunks or total is None or total < 2:
        return []
    first = record.chunks[0].num_tokens if record.has_chunk_tokens else 1
    later = total - first if 0 < first < total else total - 1
    return [(record.chunks[-1].at_s - record.chunks[0].at_s) / later]


def per_token_from_send(record: ClientRecord) -> float | None:
    """(t_m − s) / N; the close stands for t_m where no chunk came."""
    last_s = record.chunks[-1].at_s if record.chunks else record.closed_at_s
    if last_s is None or record.sent_at_s is None or not record.num_output_tokens:
        return None
    return (last_s - record.sent_at_s) / record.num_output_tokens


def first_token(record: ClientRecord) -> float | None:
    """t_1."""
    return record.chunks[0].at_s if record.chunks else None


def last_token(record: ClientRecord) -> float | None:
    """t_m."""
    return record.chunks[-1].at_s if record.chunks else None


def first_choice(record: ClientRecord) -> float | None:
    """c_1."""
    return min(_choices_at_s(record), default=None)


def last_choice(record: ClientRecord) -> float | None:
    """c_m."""
    return max(_choices_at_s(record), default=None)


def choice_gaps(record: ClientRecord) -> list[float]:
    """c_i − c_i−1."""
    return [later - earlier for earlier, later in pairwise(sorted(_choices_at_s(record)))]


def _choices_at_s(record: ClientRecord) -> list[float]:
    return [chunk.at_s for chunk in record.chunks] + list(record.empty_at_s)


last_event: Instant = attrgetter("last_event_at_s")
"""The last event of any kind, `[DONE]` included."""
closed: Instant = attrgetter("closed_at_s")
"""The end of the stream."""
sent: Instant = attrgetter("sent_at_s")
"""s."""


def alike(record: ClientRecord) -> float:  # noqa: ARG001 - a Weight's
    """Weight 1."""
    return 1.0


def by_token(record: ClientRecord) -> float:
    """Weight N."""
    return float(record.num_output_tokens or 0)


def by_later_token(record: ClientRecord) -> float:
    """Weight N − 1, at least 0."""
    return max((record.num_output_tokens or 1) - 1.0, 0.0)


def first_to_reach(values: Sequence[float], p: float, weights: Sequence[float]) -> float | None:
    """The first value whose cumulative weight reaches `p` per cent of all, not interpolated; None for no
    weight.
    """
    pairs = sorted((value, weight) for value, weight in zip(values, weights, strict=True) if weight > 0)
    if not pairs:
        return None
    goal, so_far = math.fsum(weight for _, weight in pairs) * p / 100, 0.0
    for value, weight in pairs:
        so_far += weight
        if so_far >= goal * (1 - 1e-12):
            return value
    return pairs[-1][0]


def nearest_rank_with_failures(values: Sequence[float], p: float, num_failed: int) -> float | None:
    """The value of rank ⌈n·p/100⌉ when each failure is an infinite one; None for n = 0."""
    count = len(values) + num_failed
    if count == 0:
        return None
    rank = max(math.ceil(count * p / 100), 1)
    return sorted(values)[rank - 1] if rank <= len(values) else math.inf
