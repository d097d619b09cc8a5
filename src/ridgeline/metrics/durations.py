"""Every duration of a request, defined once for all who report it: seconds, None where undefined.

The first five hold for a client's record and for the server's: `a` is the instant the clock starts (the
scheduled send; the arrival), `t_i` and `k_i` arrival and tokens of chunk i of m that carries tokens, N all
tokens. Source of the definitions: docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from ridgeline.metrics.client_record import ClientRecord
    from ridgeline.metrics.server_record import ServerRecord


class Chunk(NamedTuple):
    """Arrival of at least one generated token, and of how many."""

    at_s: float
    num_tokens: int


class TimedTokens(Protocol):
    """What a record must tell: when its clock starts, its chunks, its tokens if they are known."""

    @property
    def clock_starts_at_s(self) -> float:
        """The instant `a`."""
        ...

    @property
    def chunks(self) -> Sequence[Chunk]:
        """In the order of arrival."""
        ...

    @property
    def num_output_tokens(self) -> int | None:
        """N; None: only what came is known."""
        ...


def ttft_s(record: TimedTokens) -> float | None:
    """Time to first token: t_1 − a; None: no token came."""
    return _between(record.clock_starts_at_s, record.chunks[0].at_s) if record.chunks else None


def e2e_s(record: TimedTokens) -> float | None:
    """End to end: t_m − a; None: no token came."""
    return _between(record.clock_starts_at_s, record.chunks[-1].at_s) if record.chunks else None


def tpot_s(record: TimedTokens) -> float | None:
    """Time per output token: (t_m − t_1) / (N − k_1); N is usage, else what came.

    None when N = k_1 (always for one token), and when all came in one chunk: then nothing is known of the
    time between tokens, even if usage counts more of them than the chunk was taken to hold.
    """
    if len(record.chunks) < 2:
        return None
    total = record.num_output_tokens
    if total is None:
        total = sum(chunk.num_tokens for chunk in record.chunks)
    later = total - record.chunks[0].num_tokens
    return (record.chunks[-1].at_s - record.chunks[0].at_s) / later if later > 0 else None


def icl_s(record: TimedTokens) -> list[float]:
    """Inter-chunk latencies, the gaps t_i − t_{i−1}, i ≥ 2: what a reader sees stalling."""
    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(record.chunks)]
    assert all(gap >= 0 for gap in gaps), "chunks run backwards"
    return gaps


def itl_s(record: TimedTokens) -> list[float]:
    """Inter-token latencies, one per token: each gap between chunks, spread over the k_i it brought."""
    gaps = zip(icl_s(record), record.chunks[1:], strict=True)
    return [gap / chunk.num_tokens for gap, chunk in gaps for _ in range(chunk.num_tokens)]


def lateness_s(record: ClientRecord) -> float | None:
    """s − a: the wait inside the client; None: never sent."""
    return _between(record.scheduled_at_s, record.sent_at_s)


def queue_s(record: ServerRecord) -> float | None:
    """First scheduled − queued; None: never scheduled."""
    return _between(record.queued_at_s, record.scheduled_at_s)


def tokenize_s(record: ServerRecord) -> float | None:
    """Queued − arrival: parsing, templating and tokenising, and the way to the engine; None: never queued."""
    return _between(record.arrived_at_s, record.queued_at_s)


def prefill_s(record: ServerRecord) -> float | None:
    """First token − first scheduled, preemptions inside it included; None: no token."""
    return _between(record.scheduled_at_s, record.chunks[0].at_s) if record.chunks else None


def decode_s(record: ServerRecord) -> float | None:
    """Last − first token, preemptions inside it included; None: no token."""
    return _between(record.chunks[0].at_s, record.chunks[-1].at_s) if record.chunks else None


def inference_s(record: ServerRecord) -> float | None:
    """Prefill + decode: last token − first scheduled; None: no token."""
    return _between(record.scheduled_at_s, record.chunks[-1].at_s) if record.chunks else None


def preempted_s(record: ServerRecord) -> float:
    """Sum of (scheduled again − preempted): a part of prefill and decode time."""
    return sum(resumed_at_s - lost_at_s for lost_at_s, resumed_at_s in record.preemptions)


def _between(start_s: float | None, end_s: float | None) -> float | None:
    if start_s is None or end_s is None:
        return None
    assert end_s >= start_s, "an instant lies before the one it follows"
    return end_s - start_s
