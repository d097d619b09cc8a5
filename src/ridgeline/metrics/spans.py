"""A finished request as the data of a trace span, under the GenAI attribute names that vLLM uses too.

Sources: OpenTelemetry semantic conventions for generative AI 1.41; vllm/tracing/utils.py, 0.33.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.metrics.client_record import Outcome
from ridgeline.metrics.durations import decode_s, e2e_s, inference_s, prefill_s, queue_s, ttft_s
from ridgeline.metrics.server_record import ServerRecord

SPAN_NAME = "llm_request"
_LATENCIES = {
    "gen_ai.latency.time_in_queue": queue_s,
    "gen_ai.latency.time_to_first_token": ttft_s,
    "gen_ai.latency.e2e": e2e_s,
    "gen_ai.latency.time_in_model_prefill": prefill_s,
    "gen_ai.latency.time_in_model_decode": decode_s,
    "gen_ai.latency.time_in_model_inference": inference_s,
}

AttributeValue = str | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """What the HTTP side knows of a request. `traceparent` is the W3C header that came with it, if any."""

    model: str
    operation: str = "text_completion"
    traceparent: str | None = None
    temperature: float | None = None
    top_p: float | None = None


@dataclass(frozen=True, slots=True)
class SpanData:
    """A span; instants in nanoseconds since the epoch. `error` is the kind of failure; None: a good end."""

    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue]
    traceparent: str | None
    error: str | None


def span_data(record: ServerRecord, call: TracedCall, *, epoch_offset_s: float) -> SpanData:
    """The span of an ended request; `epoch_offset_s` + an instant of the engine's clock is wall time."""
    assert record.finished_at_s is not None, "a span of a request that is not over"
    attributes: dict[str, AttributeValue | None] = {
        "gen_ai.operation.name": call.operation,
        "gen_ai.provider.name": "ridgeline",
        "gen_ai.request.model": call.model,
        "gen_ai.response.model": call.model,
        "gen_ai.request.id": record.request_id,
        "gen_ai.request.n": record.num_choices,
        "gen_ai.request.max_tokens": record.max_tokens,
        "gen_ai.request.temperature": call.temperature,
        "gen_ai.request.top_p": call.top_p,
        "gen_ai.usage.prompt_tokens": record.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": record.num_output_tokens,
        "gen_ai.response.finish_reason": record.finish_reason,
    }
    attributes |= {name: measure(record) for name, measure in _LATENCIES.items()}
    outcome = record.outcome
    error = None if outcome is None or outcome is Outcome.OK else outcome.value
    attributes["error.type"] = error
    return SpanData(
        SPAN_NAME,
        _nanoseconds(record.arrived_at_s + epoch_offset_s),
        _nanoseconds(record.finished_at_s + epoch_offset_s),
        {name: value for name, value in attributes.items() if value is not None},
        call.traceparent,
        error,
    )


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
