"""The definitions of other tools, so that one sees why two of them disagree on one run.

Sources, read in the tools' own code: vLLM 0.33 `benchmarks/serve.py`, `lib/endpoint_request_func.py`; SGLang
0.5.23 `benchmark/serving.py` (its chat backend); GenAI-Perf 2025-12 `llm_profile_data_parser.py`,
`metrics/statistics.py`; AIPerf 0.13 `metrics/types`; GuideLLM 2026-08 `schemas/base/request_stats.py`,
`schemas/base/statistics.py`, `benchmark/schemas/generative/metrics.py`; llama.cpp
`tools/server/server-common.h`. Where a tool's rule for a failed request was not read, our own stands for it.
In the formulas `a` is the scheduled send; the rest as in `dialect_values`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ridgeline.metrics import dialect_values as dv
from ridgeline.metrics import durations
from ridgeline.metrics.client_record import ClientRecord

QUANTITIES = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a tool does with requests that failed or have no value, and with sets of no value.

    `takes` tells whose values enter the latencies, and who counts in requests/s unless `rates_all` requests.
    `weights` by quantity: what a request's value counts; then percentiles are the first value that reaches
    the share. `empty_s` is written where there is no value, None: nothing is; `empty_e2e_s` for E2E.
    `slos`: SLO name → its quantity; None: it has no goodput, or its code was not read. `passes_undefined`: a
    request without the value of an SLO passes it. `attains`: good / all sent is a figure of it.
    `with_failures`: quantities that it also sums up with each failed request as an infinite one.
    `is_first_to_last`: its duration goes from the first send to the last token, not over the whole run.
    `words` says all that to people.
    """

    words: str
    takes: Callable[[ClientRecord], bool] = dv.is_ok
    rates_all: bool = False
    weights: Mapping[str, dv.Weight] = field(default_factory=dict)
    is_interpolated: bool = True
    empty_s: float | None = None
    empty_e2e_s: float | None = None
    slos: Mapping[str, str] | None = None
    passes_undefined: bool = True
    attains: bool = False
    with_failures: tuple[str, ...] = ()
    is_first_to_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A tool's definitions: values in seconds of one record by quantity.

    `formulas` says them in words; a quantity that the tool has not is in neither.
    """

    name: str
    values: Mapping[str, dv.Values]
    formulas: Mapping[str, str]
    rules: Rules


_FROM_SEND = "t_1 − s"
_PER_REQUEST = "(t_m − t_1) / (N − 1), one value a request"
_SLOS = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}

_RIDGELINE = Dialect(
    name="ridgeline",
    values={
        "ttft": dv.one(durations.ttft_s),
        "tpot": dv.one(durations.tpot_s),
        "itl": durations.itl_s,
        "e2e": dv.one(durations.e2e_s),
    },
    formulas={
        "ttft": "t_1 − a",
        "tpot": "(t_m − t_1) / (N − k_1)",
        "itl": "each gap over its tokens, one value a token",
        "e2e": "t_m − a",
    },
    rules=Rules(
        words="failures are in no latency, in attainment's denominator; an undefined value passes its SLO",
        slos=_SLOS,
        attains=True,
    ),
)
_VLLM = Dialect(
    name="vllm",
    values={
        "ttft": dv.since_send(dv.first_choice),
        "tpot": dv.after_first(dv.last_choice, first=dv.first_choice),
        "itl": dv.choice_gaps,
        "e2e": dv.since_send(dv.last_choice),
    },
    formulas={
        "ttft": "c_1 − s; a role alone counts",
        "tpot": "(c_m − c_1) / (N − 1)",
        "itl": "each gap between choices, a role alone and a bare finish reason included",
        "e2e": "c_m − s",
    },
    rules=Rules(
        words="a whole stream with a choice is a success, also without finish reason or with an error in it; "
        "one token has no TPOT and passes its SLO as 0; no value is written as 0",
        takes=dv.is_whole_with_choices,
        empty_s=0.0,
        empty_e2e_s=0.0,
        slos=_SLOS,
    ),
)
_SGLANG = Dialect(
    name="sglang",
    values={
        "ttft": dv.or_zero(dv.since_send(dv.first_token)),
        "tpot": dv.after_first(dv.last_event, start=dv.sent),
        "itl": durations.icl_s,
        "e2e": dv.since_send(dv.last_event),
    },
    formulas={
        "ttft": f"{_FROM_SEND}; 0 where no token came",
        "tpot": "(last event − t_1) / (N − 1), [DONE] is an event",
        "itl": "each gap between chunks",
        "e2e": "last event − s, [DONE] is one",
    },
    rules=Rules(
        words="a whole stream is a success, also without a token: its TTFT is 0; one token passes tpot as 0; "
        "no value is written as 0, for E2E as NaN, whose percentile NumPy may refuse",
        takes=dv.is_whole,
        empty_s=0.0,
        empty_e2e_s=math.nan,
        slos=_SLOS,
        attains=True,
    ),
)
_GENAI_PERF = Dialect(
    name="genai-perf",
    values={
        "ttft": dv.since_send(dv.first_token),
        "itl": dv.after_first(dv.last_token),
        "e2e": dv.since_send(dv.last_token),
    },
    formulas={"ttft": _FROM_SEND, "itl": _PER_REQUEST, "e2e": "t_m − s"},
    rules=Rules(
        words="requests without a token are in no latency but in requests/s; an error in a stream ends its "
        "report; no value, no line",
        takes=dv.has_tokens,
        rates_all=True,
        is_first_to_last=True,
    ),
)
_AIPERF = Dialect(
    name="aiperf",
    values={
        "ttft": dv.since_send(dv.first_token),
        "itl": dv.after_first_chunk,
        "e2e": dv.since_send(dv.last_token),
    },
    formulas={
        "ttft": _FROM_SEND,
        "itl": "(t_m − t_1) / (N − k_1), one value a request; k_1 = 1 without per-chunk usage or if it is N",
        "e2e": "t_m − s",
    },
    rules=Rules(
        words="failures are in no latency, infinite in adj_*, in attainment's denominator; a request without "
        "the value of an SLO misses it: one token misses tpot; no value, no line",
        takes=dv.has_tokens,
        slos={"ttft": "ttft", "tpot": "itl", "e2el": "e2e"},
        passes_undefined=False,
        attains=True,
        with_failures=("ttft", "itl", "e2e"),
        is_first_to_last=True,
    ),
)
_GUIDELLM = Dialect(
    name="guidellm",
    values={
        "ttft": dv.or_zero(dv.since_send(dv.first_token)),
        "tpot": dv.or_zero(dv.one(dv.per_token_from_send)),
        "itl": dv.or_zero(dv.after_first(dv.last_token)),
        "e2e": dv.or_zero(dv.since_send(dv.closed)),
    },
    formulas={
        "ttft": f"{_FROM_SEND}; 0 where no token came",
        "tpot": "(t_m − s) / N: the first token is in it; weight N",
        "itl": f"{_PER_REQUEST}; weight N − 1",
        "e2e": "close − s",
    },
    rules=Rules(
        words="successful, incomplete and errored requests are summed up apart, these are successful ones; "
        "no token is a TTFT of 0, and weighs nothing in TPOT and ITL; no value is written as 0",
        weights={"tpot": dv.by_token, "itl": dv.by_later_token},
        is_interpolated=False,
        empty_s=0.0,
        empty_e2e_s=0.0,
    ),
)
_LLAMA_CPP = Dialect(
    name="llama.cpp",
    values={"tpot": dv.after_first(dv.last_token)},
    formulas={"tpot": "predicted_ms / (N − 1) of its server's timings; older builds divide by N"},
    rules=Rules(words="one figure a request, in its answer: nothing is summed up", takes=dv.has_tokens),
)
DIALECTS: Mapping[str, Dialect] = {
    each.name: each for each in (_RIDGELINE, _VLLM, _SGLANG, _GENAI_PERF, _AIPERF, _GUIDELLM, _LLAMA_CPP)
}
"""Tool → its definitions."""
