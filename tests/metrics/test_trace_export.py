"""Spans of finished requests, in an exporter of this process."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from ridgeline.core import events as ev
from ridgeline.errors import ConfigError
from ridgeline.metrics.spans import TracedCall
from ridgeline.metrics.trace_export import TraceExport, open_trace_export
from ridgeline.outputs import FinishReason

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
DEFAULT = TracedCall(model="m")


def exported(reason: FinishReason, call: TracedCall | None = None):
    exporter = InMemorySpanExporter()
    export = TraceExport(SimpleSpanProcessor(exporter), DEFAULT, epoch_offset_s=1_000_000.0)
    if call is not None:
        export.begin(["a"], call)
    export.record([ev.RequestArrived(10.5, "a", 10.0, 7, max_tokens=2), ev.RequestScheduled(11.0, "a")])
    export.record([ev.TokensEmitted(12.0, (("a", 1),))])
    assert exporter.get_finished_spans() == ()
    export.record([ev.RequestFinished(13.0, "a", reason, 2), ev.TokensEmitted(13.0, (("a", 1),))])
    export.close()
    (span,) = exporter.get_finished_spans()
    return span


def test_a_span_has_the_durations_and_counts_of_its_request() -> None:
    call = TracedCall(model="m", operation="chat", temperature=0.5, traceparent=f"00-{TRACE}-{PARENT}-01")
    span = exported(FinishReason.STOP, call)
    assert (span.name, span.start_time, span.end_time) == (
        "llm_request",
        1_000_010 * 10**9,
        1_000_013 * 10**9,
    )
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.request.id": "a",
        "gen_ai.request.max_tokens": 2,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.prompt_tokens": 7,
        "gen_ai.usage.completion_tokens": 2,
        "gen_ai.latency.time_in_queue": 0.5,
        "gen_ai.latency.time_to_first_token": 2.0,
        "gen_ai.latency.e2e": 3.0,
        "gen_ai.latency.time_in_model_prefill": 1.0,
        "gen_ai.latency.time_in_model_decode": 1.0,
        "gen_ai.latency.time_in_model_inference": 2.0,
    }
    assert {name: span.attributes[name] for name in expected} == expected
    assert "gen_ai.request.top_p" not in span.attributes
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT


@pytest.mark.parametrize("traceparent", [None, "nonsense"])
def test_without_a_parent_a_trace_begins(traceparent: str | None) -> None:
    span = exported(FinishReason.LENGTH, TracedCall(model="m", traceparent=traceparent))
    assert span.parent is None
    assert "error.type" not in span.attributes


def test_a_failure_is_an_error() -> None:
    span = exported(FinishReason.ABORT)
    assert span.attributes["error.type"] == "aborted"
    assert span.status.status_code is StatusCode.ERROR


def test_without_the_extra_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"ridgeline\[otel\]"):
        open_trace_export("http://localhost:4318/v1/traces", "m", epoch_offset_s=0.0)


def test_an_exporter_of_its_own_is_opened_and_closed() -> None:
    open_trace_export("http://localhost:4318/v1/traces", "m", epoch_offset_s=0.0).close()
