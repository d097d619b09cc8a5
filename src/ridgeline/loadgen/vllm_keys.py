"""The keys of vLLM's `bench serve` result, by its own definitions: from the send, a role alone is a token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import pstdev

from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.dialects import DIALECTS
from ridgeline.metrics.durations import lateness_s
from ridgeline.metrics.percentiles import percentile
from ridgeline.metrics.run_metrics import throughput
from ridgeline.metrics.slo import meets

DETAIL_KEYS = (
    *("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors"),
    *("server_queue_times", "server_ttfts"),
)
METRICS = ("ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue")

_TTFT_S, _TPOT_S, _ITL_S, _E2E_S = (DIALECTS["vllm"].values[name] for name in ("ttft", "tpot", "itl", "e2e"))


def sent_ttft_s(record: ClientRecord) -> float | None:
    """First choice − send."""
    return _only(_TTFT_S(record))


def sent_e2e_s(record: ClientRecord) -> float | None:
    """Last choice − send."""
    return _only(_E2E_S(record))


def tpot_s(record: ClientRecord) -> float | None:
    """(Last − first choice) / (N − 1); None for one token."""
    return _only(_TPOT_S(record))


def totals(
    records: Sequence[ClientRecord], duration_s: float, slos: Mapping[str, float]
) -> dict[str, object]:
    """Counts and rates over the whole duration, of good requests only; a rate of no time is null."""
    ok = [record for record in records if record.outcome is Outcome.OK]
    inputs = sum(record.num_prompt_tokens or 0 for record in ok)
    outputs = sum(record.num_output_tokens or 0 for record in ok)
    rates = throughput(records, duration_s)
    good = sum(_is_good(record, slos) for record in ok)
    return {
        "duration": duration_s,
        "completed": len(ok),
        "failed": len(records) - len(ok),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": rates.requests_per_s,
        "request_goodput": _rate(good, duration_s) if slos or any(r.slos_s for r in records) else None,
        "output_throughput": rates.output_tokens_per_s,
        "total_token_throughput": rates.total_tokens_per_s,
        "max_output_tokens_per_s": _peak_chunks(ok),
        "max_concurrent_requests": _peak_requests(ok),
        "rtfx": 0.0,
    }


def metric_values_s(records: Sequence[ClientRecord]) -> dict[str, list[float]]:
    """Each metric's values of the good requests, in seconds."""
    ok = [record for record in records if record.outcome is Outcome.OK]
    ends = [(sent_e2e_s(record), lateness_s(record)) for record in ok]
    return {
        "ttft": _defined(map(sent_ttft_s, ok)),
        "tpot": _defined(map(tpot_s, ok)),
        "itl": [gap for record in ok for gap in _ITL_S(record)],
        "e2el": _defined(end for end, _ in ends),
        "client_queue_time": _defined(wait for _, wait in ends),
        "e2el_including_client_queue": [
            end + wait for end, wait in ends if end is not None and wait is not None
        ],
    }


def metric_keys(values_s: Mapping[str, Sequence[float]], percentiles: Sequence[float]) -> dict[str, object]:
    """`mean_m_ms`, `median_m_ms`, `std_m_ms` and `p…_m_ms` of each metric; null without a value."""
    keys: dict[str, object] = {}
    for name, values in values_s.items():
        millis = [1000 * value for value in values]
        keys[f"mean_{name}_ms"] = sum(millis) / len(millis) if millis else None
        keys[f"median_{name}_ms"] = percentile(millis, 50)
        keys[f"std_{name}_ms"] = pstdev(millis) if millis else None
        for p in percentiles:
            keys[f"p{p:g}_{name}_ms"] = percentile(millis, p)
    return keys


def detail_keys(
    records: Sequence[ClientRecord], server_times: Mapping[str, Mapping[str, float | None]]
) -> dict[str, object]:
    """Lists with one entry for each request sent; failed ones keep their place, with null for no time.

    `server_times`: what the server itself told, by request id.
    """
    theirs = [server_times.get(record.request_id, {}) for record in records]
    counts = [(r.num_output_tokens or 0) if r.outcome is Outcome.OK else 0 for r in records]
    return {
        "input_lens": [r.num_prompt_tokens or r.num_requested_prompt_tokens or 0 for r in records],
        "output_lens": counts,
        "ttfts": [sent_ttft_s(record) for record in records],
        "itls": [list(_ITL_S(record)) for record in records],
        "start_times": [record.sent_at_s for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [record.error or "" for record in records],
        "server_queue_times": [each.get("queue_s") for each in theirs],
        "server_ttfts": [each.get("ttft_s") for each in theirs],
    }


def probe_keys(probes: Sequence[ClientRecord]) -> dict[str, object]:
    """What the probes beside the run saw."""
    ends = [1000 * end for r in probes if r.outcome is Outcome.OK and (end := sent_e2e_s(r)) is not None]
    return {
        "probe_completed": len(ends),
        "probe_failed": len(probes) - len(ends),
        "probe_median_e2el_ms": percentile(ends, 50),
        "probe_p99_e2el_ms": percentile(ends, 99),
        "probe_max_e2el_ms": max(ends, default=None),
    }


def _is_good(record: ClientRecord, slos: Mapping[str, float]) -> bool:
    own = {"ttft": sent_ttft_s(record), "tpot": tpot_s(record), "e2el": sent_e2e_s(record)}
    for name, limit in {**slos, **record.slos_s}.items():
        value = own.get(name)
        if not (meets(record, name, limit) if name not in own else value is None or value <= limit):
            return False
    return True


def _peak_chunks(ok: Sequence[ClientRecord]) -> float | None:
    """Most chunks in a second, counted from the first send: vLLM's figure, chunks whatever they hold."""
    start_s = min((r.sent_at_s for r in ok if r.sent_at_s is not None), default=0.0)
    seconds = Counter(int(chunk.at_s - start_s) for record in ok for chunk in record.chunks)
    return float(max(seconds.values())) if seconds else None


def _peak_requests(ok: Sequence[ClientRecord]) -> int | None:
    """Most requests that were in flight in the same second, counted from the first send."""
    start_s = min((r.sent_at_s for r in ok if r.sent_at_s is not None), default=0.0)
    seconds: Counter[int] = Counter()
    for record in ok:
        if record.sent_at_s is not None and record.chunks:
            first, last = int(record.sent_at_s - start_s), int(record.chunks[-1].at_s - start_s)
            seconds.update(range(first, last + 1))
    return max(seconds.values()) if seconds else None


def _rate(amount: float, duration_s: float) -> float | None:
    return amount / duration_s if duration_s > 0 else None


def _only(values: Sequence[float]) -> float | None:
    return values[0] if values else None


def _defined(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
