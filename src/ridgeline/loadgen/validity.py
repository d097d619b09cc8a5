"""Could the generator keep up, and what shaped the load."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ridgeline.metrics.percentiles import percentile

MAX_LATENESS_S = 0.010
MAX_LATENESS_SHARE = 0.05
_WAIT_S = 0.005


def invalid_reason(
    dispatch_lateness_s: Sequence[float], ttfts_s: Sequence[float], *, is_capped: bool
) -> str | None:
    """Why a run is not valid: its generator turned to requests too late at P99; None: it is.

    The bound is 10 ms, and without a cap also 5 % of the median TTFT: what is later than that is no longer
    the load that was asked for.
    """
    late_s = percentile(dispatch_lateness_s, 99)
    if late_s is None:
        return "no request was sent"
    if late_s > MAX_LATENESS_S:
        return f"the generator was late: P99 {1000 * late_s:.1f} ms, more than {1000 * MAX_LATENESS_S:g} ms"
    if not is_capped and ttfts_s and late_s > MAX_LATENESS_SHARE * median(ttfts_s):
        share = late_s / median(ttfts_s)
        return f"the generator was late: P99 {1000 * late_s:.2f} ms, {100 * share:.0f} % of the median TTFT"
    return None


def shaped_by(waits_s: Sequence[float], max_concurrency: int | None) -> str | None:
    """A line for the reader when the cap held requests back, so that not the server alone set the pace."""
    waiting = [wait for wait in waits_s if wait > _WAIT_S]
    if max_concurrency is None or not waiting:
        return None
    return (
        f"the cap of {max_concurrency} shaped the load, not the server alone: {len(waiting)} of "
        f"{len(waits_s)} requests waited for a place, {1000 * sum(waiting) / len(waiting):.0f} ms on average"
    )
