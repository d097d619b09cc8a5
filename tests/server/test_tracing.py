"""Spans of a server's requests: in an exporter of this process, and over OTLP from a process of its own."""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.server.conftest import Served, serve
from tests.server.server_process import started

from ridgeline.async_llm import AsyncLLM
from ridgeline.cli.serve import serve as serve_command
from ridgeline.cli.serve_options import ServerOptions
from ridgeline.config.server import ServerConfig
from ridgeline.engine.clock import MonotonicClock
from ridgeline.errors import ConfigError
from ridgeline.metrics.spans import TracedCall
from ridgeline.metrics.trace_export import TraceExport

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0.5, "ignore_eos": True}


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture(scope="module")
def traced(tiny_model: Path, exporter: InMemorySpanExporter) -> Iterator[Served]:
    clock = MonotonicClock()
    export = TraceExport(SimpleSpanProcessor(exporter), TracedCall(model="unknown"), epoch_offset_s=0.0)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    llm = AsyncLLM(str(tiny_model), num_threads=1, listeners=[export], clock=clock, chat_template=template)
    yield from serve(llm, ServerConfig(), trace_export=export)


def spans(server: Served, exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    """Those since the last call; an answered command of the engine's thread follows what it did before."""
    server.stats()
    finished = list(exporter.get_finished_spans())
    exporter.clear()
    return finished


def post(server: Served, path: str, body: dict, **headers: str) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=30, headers=headers)


def test_a_span_belongs_to_the_callers_trace(traced: Served, exporter: InMemorySpanExporter) -> None:
    answer = post(traced, "/v1/completions", BODY, traceparent=f"00-{TRACE}-{PARENT}-01").json()
    (span,) = spans(traced, exporter)
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": answer["model"],
        "gen_ai.request.id": answer["id"],
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.usage.prompt_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.completion_tokens": answer["usage"]["completion_tokens"],
        "gen_ai.response.finish_reason": "length",
    }
    assert {name: span.attributes[name] for name in expected} == expected
    assert 0 < span.attributes["gen_ai.latency.time_to_first_token"] <= span.attributes["gen_ai.latency.e2e"]


def test_every_endpoint_and_choice_has_spans(traced: Served, exporter: InMemorySpanExporter) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "stream": True}
    assert "[DONE]" in post(traced, "/v1/chat/completions", chat).text
    post(traced, "/v1/responses", {"input": "hi", "max_output_tokens": 2})
    assert [each.attributes["gen_ai.operation.name"] for each in spans(traced, exporter)] == ["chat"] * 2
    answer = post(traced, "/v1/completions", {**BODY, "prompt": [[5], [6]], "n": 2, "temperature": 1}).json()
    ids = {each.attributes["gen_ai.request.id"] for each in spans(traced, exporter)}
    assert ids == {f"{answer['id']}-{place}-{choice}" for place in (0, 1) for choice in (0, 1)}


def test_what_was_refused_has_no_span_and_is_forgotten(
    traced: Served, exporter: InMemorySpanExporter
) -> None:
    for body in (
        {**BODY, "temperature": -1},
        {**BODY, "prompt": [5] * 400},
        {**BODY, "logit_bias": {"99999": 1}},
    ):
        assert post(traced, "/v1/completions", body).status_code == 400
    assert spans(traced, exporter) == []
    assert traced.state.trace_export._calls == {}


def test_a_client_that_leaves_is_an_error(traced: Served, exporter: InMemorySpanExporter) -> None:
    body = {**BODY, "max_tokens": 250, "stream": True}
    with httpx.stream("POST", f"{traced.url}/v1/completions", json=body, timeout=30) as stream:
        next(stream.iter_bytes())
    found: list[ReadableSpan] = []
    while not found:
        found = spans(traced, exporter)
    assert found[0].attributes["error.type"] == "aborted"
    assert traced.state.trace_export._calls == {}


def test_a_trace_that_is_not_sampled_gets_no_span(traced: Served, exporter: InMemorySpanExporter) -> None:
    post(traced, "/v1/completions", BODY, traceparent=f"00-{TRACE}-{PARENT}-00")
    assert spans(traced, exporter) == []


class Collector(HTTPServer):
    """Takes OTLP over HTTP; `requests` are (path, message)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []


class CollectorHandler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def test_a_process_sends_its_spans_before_it_ends(tiny_model: Path) -> None:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            options = ("--no-calibrate", "--otlp-endpoint", f"http://127.0.0.1:{collector.server_port}")
            with started(
                "ridgeline", "serve", str(tiny_model), "--port", "0", *options, until="ready "
            ) as server:
                answer = httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=30).json()
                assert server.end() == 0
        finally:
            collector.shutdown()
            thread.join()
    ((path, message),) = collector.requests
    assert path == "/v1/traces"
    ((span,),) = [[s for scope in each.scope_spans for s in scope.spans] for each in message.resource_spans]
    attributes = {each.key: each.value for each in span.attributes}
    assert attributes["gen_ai.request.id"].string_value == answer["id"]
    assert attributes["gen_ai.request.model"].string_value == "tiny-llama"


def test_a_collector_that_is_away_costs_one_line(tiny_model: Path) -> None:
    options = ("--no-calibrate", "--otlp-endpoint", "http://127.0.0.1:9/v1/traces")
    with started("ridgeline", "serve", str(tiny_model), "--port", "0", *options, until="ready ") as server:
        assert httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=30).status_code == 200
        assert server.end() == 0
    assert not [line for line in server.err if line.startswith(("Traceback", "  "))]


def test_without_the_extra_the_remedy_is_named(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"otlp_endpoint=.*pip install 'ridgeline\[otel\]'"):
        serve_command(str(tiny_model), server=ServerOptions(otlp_endpoint="http://localhost:4318"))
