"""The same records by other tools' definitions, so that one sees why two tools disagree on one run.

Sources, read in the tools' own code: vLLM 0.33 `benchmarks/serve.py`, SGLang 0.5.23 `benchmark/serving.py`,
GenAI-Perf 2025-12 `llm_profile_data_parser.py`, AIPerf 0.13 `metrics/types`, GuideLLM 2026-08
`schemas/request_stats.py`, llama.cpp `tools/server/server-common.h`. In the formulas `s` is the send, `a` the
scheduled send, t_1 and t_m the first and last chunk with tokens, k_1 the first one's tokens, N all tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.errors import ConfigError
from ridgeline.metrics import durations
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.percentiles import percentile

QUANTITIES = ("ttft", "tpot", "itl", "e2e")

Values = Callable[[ClientRecord], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """A tool's definitions: values in seconds of one record by quantity, empty where undefined.

    `formulas` says them in words; a quantity that the tool has not is in neither. `percentile` is its way
    to interpolate.
    """

    name: str
    values: Mapping[str, Values]
    formulas: Mapping[str, str]
    percentile: Callable[[Sequence[float], float], float | None] = percentile


@dataclass(frozen=True, slots=True)
class DialectRow:
    """One quantity by one tool, in seconds over all good requests; None: it has none."""

    dialect: str
    quantity: str
    n: int
    mean_s: float | None
    p50_s: float | None
    p99_s: float | None
    formula: str


def nearest_rank(values: Sequence[float], p: float) -> float | None:
    """The first value whose cumulative share reaches `p` per cent, without interpolation; None for n = 0."""
    if not values:
        return None
    return sorted(values)[max(math.ceil(len(values) * p / 100), 1) - 1]


def dialect_report(records: Sequence[ClientRecord], name: str) -> list[DialectRow]:
    """The rows of one dialect, or of `all`, quantity by quantity.

    Raises:
        ConfigError: no dialect of that name.
    """
    if name != "all" and name not in DIALECTS:
        raise ConfigError("dialect", name, f"must be all, {', '.join(DIALECTS)}")
    chosen = list(DIALECTS.values()) if name == "all" else [DIALECTS[name]]
    ok = [record for record in records if record.outcome is Outcome.OK]
    return [
        _row(dialect, quantity, ok)
        for quantity in QUANTITIES
        for dialect in chosen
        if quantity in dialect.values
    ]


def _row(dialect: Dialect, quantity: str, ok: Sequence[ClientRecord]) -> DialectRow:
    values = [value for record in ok for value in dialect.values[quantity](record)]
    return DialectRow(
        dialect.name,
        quantity,
        len(values),
        math.fsum(values) / len(values) if values else None,
        dialect.percentile(values, 50),
        dialect.percentile(values, 99),
        dialect.formulas[quantity],
    )


def _one(measure: Callable[[ClientRecord], float | None]) -> Values:
    def values(record: ClientRecord) -> list[float]:
        value = measure(record)
        return [] if value is None else [value]

    return values


def _since_send(end: Callable[[ClientRecord], float | None]) -> Values:
    """From the send to `end`, of a record that got a token."""

    def values(record: ClientRecord) -> list[float]:
        at_s = end(record) if record.chunks else None
        return [] if at_s is None or record.sent_at_s is None else [at_s - record.sent_at_s]

    return values


def _after_first(end: Callable[[ClientRecord], float | None], *, by_first_chunk: bool = False) -> Values:
    """(end − t_1) / (N − 1), or / (N − k_1) where the server told k_1 and `by_first_chunk`."""

    def values(record: ClientRecord) -> list[float]:
        at_s = end(record) if record.chunks else None
        if at_s is None or record.num_output_tokens is None:
            return []
        known = record.chunks[0].num_tokens if by_first_chunk and record.has_chunk_tokens else 1
        later = record.num_output_tokens - known
        return [(at_s - record.chunks[0].at_s) / later] if later > 0 else []

    return values


def _first(record: ClientRecord) -> float | None:
    return record.chunks[0].at_s


def _last(record: ClientRecord) -> float | None:
    return record.chunks[-1].at_s


def _last_event(record: ClientRecord) -> float | None:
    return record.last_event_at_s


def _closed(record: ClientRecord) -> float | None:
    return record.closed_at_s


def _per_token_from_send(record: ClientRecord) -> float | None:
    if not record.chunks or record.sent_at_s is None or not record.num_output_tokens:
        return None
    return (record.chunks[-1].at_s - record.sent_at_s) / record.num_output_tokens


_FIRST = _since_send(_first)
_FROM_SEND = "t_1 − s"
_PER_REQUEST = "(t_m − t_1) / (N − 1), one value a request"

DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            "ridgeline",
            {
                "ttft": _one(durations.ttft_s),
                "tpot": _one(durations.tpot_s),
                "itl": durations.itl_s,
                "e2e": _one(durations.e2e_s),
            },
            {
                "ttft": "t_1 − a",
                "tpot": "(t_m − t_1) / (N − k_1)",
                "itl": "each gap over its tokens, one value a token",
                "e2e": "t_m − a",
            },
        ),
        Dialect(
            "vllm",
            {
                "ttft": _FIRST,
                "tpot": _after_first(_last),
                "itl": durations.icl_s,
                "e2e": _since_send(_last),
            },
            {
                "ttft": _FROM_SEND,
                "tpot": "(t_m − t_1) / (N − 1)",
                "itl": "each gap between chunks",
                "e2e": "t_m − s",
            },
        ),
        Dialect(
            "sglang",
            {
                "ttft": _FIRST,
                "tpot": _after_first(_last_event),
                "itl": durations.icl_s,
                "e2e": _since_send(_last_event),
            },
            {
                "ttft": _FROM_SEND,
                "tpot": "(last event − t_1) / (N − 1), [DONE] is an event",
                "itl": "each gap between chunks",
                "e2e": "last event − s, [DONE] is one",
            },
        ),
        Dialect(
            "genai-perf",
            {"ttft": _FIRST, "itl": _after_first(_last), "e2e": _since_send(_last)},
            {"ttft": _FROM_SEND, "itl": _PER_REQUEST, "e2e": "t_m − s"},
        ),
        Dialect(
            "aiperf",
            {
                "ttft": _FIRST,
                "itl": _after_first(_last, by_first_chunk=True),
                "e2e": _since_send(_last),
            },
            {
                "ttft": _FROM_SEND,
                "itl": "(t_m − t_1) / (N − k_1), one value a request; k_1 = 1 without per-chunk usage",
                "e2e": "t_m − s",
            },
        ),
        Dialect(
            "guidellm",
            {
                "ttft": _FIRST,
                "tpot": _one(_per_token_from_send),
                "itl": _after_first(_last),
                "e2e": _since_send(_closed),
            },
            {
                "ttft": _FROM_SEND,
                "tpot": "(t_m − s) / N: the first token is in it",
                "itl": _PER_REQUEST,
                "e2e": "close − s",
            },
            nearest_rank,
        ),
        Dialect(
            "llama.cpp",
            {"tpot": _after_first(_last)},
            {"tpot": "predicted_ms / (N − 1) of its server's timings; older builds divide by N"},
        ),
    )
}
"""Tool → its definitions."""
