"""Where the time goes just above a server's capacity, against just below it.

By the server's own figures where it has them. By what the client sees otherwise, which cannot tell a queue
from a slow prefill, nor a prefill beside a decode from a preemption: then the names say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ridgeline.loadgen.late_tokens import cause_name
from ridgeline.loadgen.server_metrics import ServerStretch
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.durations import e2e_s, icl_s, tpot_s, ttft_s
from ridgeline.metrics.percentiles import percentile

DECODE = "decode"
"""The phase mix of a step without any prefill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPicture:
    """One load seen from the client (ms, means of good requests) and, if it tells, from the server."""

    rate: float
    num_good: int
    ttft_ms: float | None
    tpot_ms: float | None
    gap_p50_ms: float | None
    gap_mean_ms: float | None
    concurrency: float | None
    """Σ E2E / duration, by Little's law."""
    server: ServerStretch | None
    causes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By what was late, `ttft` or `itl`: how often the server's event log names each cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of a latency at both loads, in ms."""

    name: str
    below_ms: float
    above_ms: float

    @property
    def growth_ms(self) -> float:
        """Above − below."""
        return self.above_ms - self.below_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """`slo` breaks first; `source`: server or client; `shares` of its latency, the largest growth first;
    `facts`: one line each.
    """

    slo: str
    source: str
    shares: Sequence[Share]
    facts: Sequence[str]


def load_picture(
    rate: float, records: Sequence[ClientRecord], duration_s: float, server: ServerStretch | None
) -> LoadPicture:
    """The picture of one run."""
    ok = [record for record in records if record.outcome is Outcome.OK]
    gaps = [gap for record in ok for gap in icl_s(record)]
    ends = [end for record in ok if (end := e2e_s(record)) is not None]
    return LoadPicture(
        rate=rate,
        num_good=len(ok),
        ttft_ms=_mean_ms([ttft_s(record) for record in ok]),
        tpot_ms=_mean_ms([tpot_s(record) for record in ok]),
        gap_p50_ms=1000 * middle if (middle := percentile(gaps, 50)) is not None else None,
        gap_mean_ms=_mean_ms(gaps),
        concurrency=sum(ends) / duration_s if duration_s > 0 else None,
        server=server,
    )


def count_causes(late_tokens: Sequence[Mapping[str, object]]) -> dict[str, dict[str, int]]:
    """The causes in a server's account of late tokens, by what was late: `ttft` or `itl`; the most frequent
    first, and a queue with what it lacked.
    """
    found: dict[str, Counter[str]] = {"ttft": Counter(), "itl": Counter()}
    for each in late_tokens:
        causes = each.get("causes")
        for cause in causes if isinstance(causes, list) else []:
            name = cause_name(cause)
            if name is not None:
                found["ttft" if each.get("kind") == "ttft" else "itl"][name] += 1
    return {kind: dict(counts.most_common()) for kind, counts in found.items()}


def first_to_break(attainment_by_slo: Mapping[str, float]) -> str | None:
    """The SLO that the fewest requests meet."""
    return min(attainment_by_slo, key=attainment_by_slo.__getitem__) if attainment_by_slo else None


def find_bottleneck(slo: str, below: LoadPicture, above: LoadPicture) -> Bottleneck:
    """What grew between a load that met the SLOs and one that missed them."""
    is_start = slo == "ttft"
    by_server = _server_start(below, above) if is_start else _server_steps(below, above)
    shares = by_server or (_client_start(below, above) if is_start else _client_steps(below, above))
    return Bottleneck(
        slo=slo,
        source="server" if by_server else "client",
        shares=sorted(shares, key=lambda share: share.growth_ms, reverse=True),
        facts=[*_facts(below, above), *_cause_facts(slo, above.causes)],
    )


def _server_start(below: LoadPicture, above: LoadPicture) -> list[Share]:
    """TTFT: the queue, prefill in its steps, and the rest (parsing, network, the client)."""
    if below.server is None or above.server is None:
        return []
    names = {"queue_ms": "queue", "prefill_ms": "prefill, with what shares its steps"}
    pairs = [
        (name, below.server.stages.get(key), above.server.stages.get(key)) for key, name in names.items()
    ]
    shares = [
        Share(name=name, below_ms=a, above_ms=b) for name, a, b in pairs if a is not None and b is not None
    ]
    if len(shares) < len(names) or below.ttft_ms is None or above.ttft_ms is None:
        return shares
    below_ms = below.ttft_ms - sum(share.below_ms for share in shares)
    above_ms = above.ttft_ms - sum(share.above_ms for share in shares)
    if min(below_ms, above_ms) < 0:  # a run cut short: the server also counts whom the client left waiting
        return shares
    return [*shares, Share(name="outside the engine", below_ms=below_ms, above_ms=above_ms)]


def _server_steps(below: LoadPicture, above: LoadPicture) -> list[Share]:
    """A step: one of decodes alone grows with the batch; the rest of the mean is prefill within steps."""
    low, high = _step_parts(below.server), _step_parts(above.server)
    if low is None or high is None:
        return []
    return [
        Share(name="decode step (grows with the batch)", below_ms=low[0], above_ms=high[0]),
        Share(name="prefill in the same steps", below_ms=low[1], above_ms=high[1]),
    ]


def _step_parts(server: ServerStretch | None) -> tuple[float, float] | None:
    """(a step of decodes alone, what prefill adds to the mean step that has decodes), ms."""
    if server is None or DECODE not in server.steps:
        return None
    decode_ms = server.steps[DECODE][1]
    mixed = {mix: step for mix, step in server.steps.items() if mix not in (DECODE, "prefill", "idle")}
    count = server.steps[DECODE][0] + sum(step[0] for step in mixed.values())
    added_ms = sum(step[0] * (step[1] - decode_ms) for step in mixed.values())
    return decode_ms, max(added_ms / count, 0.0)


def _client_start(below: LoadPicture, above: LoadPicture) -> list[Share]:
    if below.ttft_ms is None or above.ttft_ms is None:
        return []
    name = "time to the first token (queue and prefill can't be told apart from outside)"
    return [Share(name=name, below_ms=below.ttft_ms, above_ms=above.ttft_ms)]


def _client_steps(below: LoadPicture, above: LoadPicture) -> list[Share]:
    ends = (below.gap_p50_ms, above.gap_p50_ms, below.gap_mean_ms, above.gap_mean_ms)
    if any(value is None for value in ends):
        return []
    low_p50, high_p50, low_mean, high_mean = (value or 0.0 for value in ends)
    return [
        Share(name="the usual gap (a larger batch, seen from outside)", below_ms=low_p50, above_ms=high_p50),
        Share(
            name="stalls above it (others' prefills or preemptions, seen from outside)",
            below_ms=max(low_mean - low_p50, 0.0),
            above_ms=max(high_mean - high_p50, 0.0),
        ),
    ]


def _facts(below: LoadPicture, above: LoadPicture) -> list[str]:
    facts = []
    if below.concurrency is not None and above.concurrency is not None:
        facts.append(f"in flight on average: {below.concurrency:.1f} below, {above.concurrency:.1f} above")
    for name, text in (("running", "in a batch"), ("waiting", "waiting")):
        ends = [getattr(p.server, name, None) for p in (below, above)]
        if None not in ends:
            facts.append(f"{text} on average (its gauge): {ends[0]:.1f} below, {ends[1]:.1f} above")
    if above.server is not None and above.server.preemptions is not None:
        facts.append(f"KV preemptions above: {above.server.preemptions:.0f} for {above.num_good} requests")
    if above.server is not None and above.server.kv_usage is not None:
        facts.append(f"KV blocks in use above: at most {100 * above.server.kv_usage:.0f} %")
    return facts


def _cause_facts(slo: str, causes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Those of first tokens for `ttft`, those of later ones for the rest, both for `e2el`."""
    kinds = {"ttft": ("ttft",), "e2el": ("ttft", "itl")}.get(slo, ("itl",))
    what = {"ttft": "first tokens over their limit", "itl": "the longest gaps"}
    return [
        f"causes of {what[kind]} above, by the server's event log: "
        + ", ".join(f"{cause} {count} ×" for cause, count in causes[kind].items())
        for kind in kinds
        if causes.get(kind)
    ]


def _mean_ms(values_s: Sequence[float | None]) -> float | None:
    known = [value for value in values_s if value is not None]
    return 1000 * fmean(known) if known else None
