"""What each metric is, in which unit, when it is undefined, and how other tools differ; for people to read.

Read in: vLLM 0.33, SGLang 0.5.23, GenAI-Perf 2025-12, AIPerf 0.13, GuideLLM 2026-08, llama.cpp 0c1e570.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from ridgeline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Definition:
    """`others`: tool → what it means by the name, where that differs or the tool has none."""

    name: str
    title: str
    formula: str
    unit: str
    undefined: str
    note: str
    others: Mapping[str, str]


def find_definition(name: str) -> Definition:
    """The definition of a metric, by its name in any case, with - or _.

    Raises:
        ConfigError: no such metric; names the nearest ones.
    """
    wanted = name.strip().lower().replace("-", "_").removesuffix("_s").removesuffix("_ms")
    if wanted in DEFINITIONS:
        return DEFINITIONS[wanted]
    near = get_close_matches(wanted, DEFINITIONS, n=3, cutoff=0.5)
    remedy = f"did you mean {', '.join(near)}?" if near else f"the metrics are {', '.join(DEFINITIONS)}"
    raise ConfigError("metric", name, remedy)


_TPOT_OTHERS = {
    "vllm": "(c_m − c_1) / (N − 1), a role alone counts as c_1; in /metrics one token counts as 0",
    "sglang": "(last event − t_1) / (N − 1); [DONE] is an event",
    "genai-perf": "has no TPOT: calls (E2E − TTFT) / (N − 1) inter-token latency",
    "aiperf": "has no TPOT: calls (t_m − t_1) / (N − k_1) inter-token latency",
    "guidellm": "(t_m − s) / N: the first token is in it; a request weighs N",
    "llama.cpp": "predicted_per_token_ms, predicted_ms / (N − 1); older builds divide by N",
}

DEFINITIONS: Mapping[str, Definition] = {
    each.name: each
    for each in (
        Definition(
            "ttft",
            "Time to first token",
            "client: t_1 − a, from the scheduled send; server: tok_1 − arrival, queue and tokeniser included",
            "seconds (ms in reports)",
            "no token came",
            "A role-only first chunk carries no token.",
            {
                "vllm": "c_1 − s, from the send: a wait in the client is hidden; a role alone counts",
                "sglang": "t_1 − s; empty chunks are dropped, an answer without a token counts as 0",
                "genai-perf": "first non-empty response − s",
                "aiperf": "first content response − s; failed requests can be folded in",
                "guidellm": "first chunk that counts as a token − s, wall clock; 0 without a token",
                "llama.cpp": "none; prompt_ms excludes the queue",
            },
        ),
        Definition(
            "tpot",
            "Time per output token, one value a request",
            "client: (t_m − t_1) / (N − k_1); server: (tok_N − tok_1) / (N − 1)",
            "seconds (ms in reports)",
            "one token, or all of them in one chunk",
            "Weighs requests alike. Its P99 hides stalls: look at ITL and ICL beside it.",
            _TPOT_OTHERS,
        ),
        Definition(
            "itl",
            "Inter-token latency, one value a token",
            "gap t_i − t_{i−1} spread over its k_i tokens: k_i values of gap / k_i, i ≥ 2",
            "seconds (ms in reports)",
            "fewer than two chunks",
            "Weighs tokens alike; with k_1 = 1 a request's mean ITL is its TPOT.",
            {
                "vllm": "each gap between choices, whatever they hold: our ICL, a role alone counted in",
                "sglang": "each gap between chunks; native endpoint: gap / new tokens",
                "genai-perf": "one value a request: (t_m − t_1) / (N − 1), others' TPOT",
                "aiperf": "one value a request: (t_m − t_1) / (N − k_1), k_1 = 1 without per-chunk usage",
                "guidellm": "one value a request: (t_m − t_1) / (N − 1), which weighs N − 1",
                "llama.cpp": "none",
            },
        ),
        Definition(
            "icl",
            "Inter-chunk latency",
            "t_i − t_{i−1}, i ≥ 2: what a reader sees stalling",
            "seconds (ms in reports)",
            "fewer than two chunks",
            "Equals ITL while every chunk holds one token.",
            {"vllm": "calls it itl", "sglang": "calls it itl", "aiperf": "inter chunk latency"},
        ),
        Definition(
            "e2e",
            "End-to-end latency",
            "client: t_m − a; server: tok_N − arrival",
            "seconds (ms in reports)",
            "no token came",
            "The last token ends it, not the end of the stream.",
            {
                "vllm": "t_m − s",
                "sglang": "last event − s, [DONE] is one",
                "genai-perf": "t_m − s",
                "aiperf": "t_m − s",
                "guidellm": "close − s",
                "llama.cpp": "none",
            },
        ),
        Definition(
            "lateness",
            "The generator's own delay",
            "s − a, send minus scheduled send",
            "seconds (ms in reports)",
            "never sent",
            "A run whose generator was late (P99 over 10 ms or 5 % of the median TTFT) is not valid.",
            {"vllm": "client_queue_time: the wait under --max-concurrency alone"},
        ),
        Definition(
            "queue",
            "Queue time",
            "scheduled − queued, the first time only",
            "seconds",
            "never scheduled",
            "Waiting after a preemption is preempted time, a part of prefill or decode time.",
            {"llama.cpp": "none; requests_deferred counts those that wait"},
        ),
        Definition(
            "prefill",
            "Prefill time",
            "tok_1 − scheduled",
            "seconds",
            "no token came",
            "Covers the prompt less its cached tokens, among the decodes of others.",
            {"llama.cpp": "prompt_ms: start of processing to first sample"},
        ),
        Definition(
            "decode",
            "Decode time",
            "tok_N − tok_1, preemptions inside it included",
            "seconds",
            "no token came",
            "The sum of the server's ITLs.",
            {"llama.cpp": "predicted_ms"},
        ),
        Definition(
            "request_throughput",
            "Requests a second",
            "|ok| / W, W from the first scheduled send to the end of the last request, failures included",
            "requests/s",
            "W = 0",
            "ok: ended with stop, length or tool_calls and a complete stream.",
            {
                "vllm": "whole streams with a token, also without finish reason",
                "sglang": "whole streams, also without a token",
                "genai-perf": "all profiled requests, from the first send to the last token",
                "aiperf": "valid ones, from the first send to the last token",
                "guidellm": "successful ones in the console",
            },
        ),
        Definition(
            "output_throughput",
            "Generated tokens a second",
            "Σ_ok N / W",
            "tokens/s",
            "W = 0",
            "Total throughput adds the prompts, computed throughput leaves cached tokens out.",
            {"vllm": "its peak counts chunks a second, not tokens", "llama.cpp": "tg of llama-bench: n / t"},
        ),
        Definition(
            "goodput",
            "Requests a second that meet every SLO",
            "|ok and every SLO met| / W; attainment: the same count / all requests sent",
            "requests/s",
            "W = 0; attainment: none sent",
            "A metric that a request has not binds it to nothing; such passes are counted (slo_undefined).",
            {
                "vllm": "the rate only; one token passes tpot as 0",
                "sglang": "attainment: good / all sent",
                "aiperf": "attainment: good / (valid + errors); one token fails tpot",
            },
        ),
        Definition(
            "percentile",
            "Percentiles",
            "linear interpolation at rank (n − 1)·p/100 of the sorted values",
            "that of the values",
            "n = 0",
            "P99 of fewer than 100 values and P99.9 of fewer than 1,000 are flagged.",
            {
                "vllm": "the same; 0 for n = 0",
                "sglang": "the same; 0 for n = 0, NaN for E2E",
                "genai-perf": "the same; no line for n = 0",
                "guidellm": "the first value whose cumulative weight reaches p; 0 for n = 0",
                "aiperf": "a t-digest for lists; nearest rank for adj_*, each failure an infinite value",
            },
        ),
        Definition(
            "roofline_fraction",
            "Fraction of the roofline",
            "least seconds by the machine's measured ceilings / measured seconds, by op",
            "1",
            "the machine is not calibrated",
            "Least = max(FLOPs / peak, bytes / bandwidth).",
            {},
        ),
        Definition(
            "drift",
            "Drift from the prediction",
            "measured / predicted seconds of a minute's steps; flagged beyond ± 25 %",
            "1",
            "not calibrated, or less than 3 s of work in the minute",
            "Names the op with the largest part in it and a likely cause.",
            {},
        ),
    )
}
"""Name → definition."""
