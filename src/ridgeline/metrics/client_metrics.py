"""What a client's record says: durations in seconds, from the scheduled instant, None where undefined.

`a` is the scheduled instant, `s` the send, `t_i` and `k_i` arrival and tokens of chunk i of m, N all tokens.
"""

from __future__ import annotations

from itertools import pairwise

from ridgeline.metrics.client_record import ClientRecord


def lateness_s(record: ClientRecord) -> float | None:
    """s − a: the wait inside the client; None: never sent."""
    return _between(record.scheduled_at_s, record.sent_at_s)


def ttft_s(record: ClientRecord) -> float | None:
    """t_1 − a; None: no token came."""
    return _between(record.scheduled_at_s, record.chunks[0].at_s) if record.chunks else None


def e2e_s(record: ClientRecord) -> float | None:
    """t_m − a; None: no token came."""
    return _between(record.scheduled_at_s, record.chunks[-1].at_s) if record.chunks else None


def tpot_s(record: ClientRecord) -> float | None:
    """(t_m − t_1) / (N − k_1); None when N = k_1 (always for one token). N is usage, else what came."""
    if not record.chunks:
        return None
    received = sum(chunk.num_tokens for chunk in record.chunks)
    total = record.num_output_tokens if record.num_output_tokens is not None else received
    later = total - record.chunks[0].num_tokens
    if later <= 0 or len(record.chunks) < 2:
        return None
    return (record.chunks[-1].at_s - record.chunks[0].at_s) / later


def icl_s(record: ClientRecord) -> list[float]:
    """The gaps t_i − t_{i−1} between chunks, i ≥ 2: what a reader sees stalling."""
    gaps = [later.at_s - earlier.at_s for earlier, later in pairwise(record.chunks)]
    assert all(gap >= 0 for gap in gaps), "chunks run backwards"
    return gaps


def itl_s(record: ClientRecord) -> list[float]:
    """One value per token: each gap between chunks, spread over the k_i tokens that it brought."""
    gaps = zip(icl_s(record), record.chunks[1:], strict=True)
    return [gap / chunk.num_tokens for gap, chunk in gaps for _ in range(chunk.num_tokens)]


def _between(start_s: float, end_s: float | None) -> float | None:
    if end_s is None:
        return None
    assert end_s >= start_s, "an instant lies before the one it follows"
    return end_s - start_s
