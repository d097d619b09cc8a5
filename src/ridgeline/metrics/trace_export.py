"""TraceExport: a span for each finished request, to an OpenTelemetry collector. Needs the extra `otel`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ridgeline.core.events import Event
from ridgeline.errors import ConfigError
from ridgeline.metrics.server_record import ServerRecords
from ridgeline.metrics.spans import SpanData, TracedCall, span_data

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

CLOSE_TIMEOUT_S = 5.0
"""A collector that does not answer may not hold up the end of the process for longer."""
_TRACES_PATH = "/v1/traces"


class TraceExport:
    """An event listener; `begin` tells what the HTTP side knows of a request before the engine has it.

    `processor` gets the spans; requests that nobody began get a span of `default`.
    """

    def __init__(self, processor: SpanProcessor, default: TracedCall, *, epoch_offset_s: float) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        self._provider = TracerProvider(
            resource=Resource({"service.name": "ridgeline"}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("ridgeline")
        self._default = default
        self._epoch_offset_s = epoch_offset_s
        self._calls: dict[str, TracedCall] = {}
        self._records = ServerRecords()
        self._lock = threading.Lock()

    def begin(self, request_ids: Sequence[str], call: TracedCall) -> None:
        """Remember a call until its requests end."""
        with self._lock:
            self._calls |= dict.fromkeys(request_ids, call)

    def forget(self, request_ids: Sequence[str]) -> None:
        """These requests were refused: the engine never tells of their end."""
        with self._lock:
            for request_id in request_ids:
                self._calls.pop(request_id, None)

    def record(self, events: Iterable[Event]) -> None:
        """Take the events of one step; requests that ended with it become spans."""
        for record in self._records.record(events):
            with self._lock:
                call = self._calls.pop(record.request_id, self._default)
            self._emit(span_data(record, call, epoch_offset_s=self._epoch_offset_s))

    def close(self) -> None:
        """Send what is left, for at most five seconds."""
        closing = threading.Thread(target=self._provider.shutdown, name="ridgeline-traces", daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)

    def _emit(self, data: SpanData) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {} if data.traceparent is None else {"traceparent": data.traceparent}
        span = self._tracer.start_span(
            data.name,
            context=TraceContextTextMapPropagator().extract(carrier),
            kind=SpanKind.SERVER,
            attributes=dict(data.attributes),
            start_time=data.start_ns,
        )
        if data.error is not None:
            span.set_status(Status(StatusCode.ERROR, data.error))
        span.end(data.end_ns)


def open_trace_export(endpoint: str, model: str, *, epoch_offset_s: float) -> TraceExport:
    """Spans to an OTLP/HTTP collector; `epoch_offset_s` + the engine's clock is wall time.

    An `endpoint` without a path gets `/v1/traces`, as OpenTelemetry's own variable for it does.

    Raises:
        ConfigError: the extra `otel` is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        remedy = "needs OpenTelemetry: pip install 'ridgeline[otel]'"
        raise ConfigError("otlp_endpoint", endpoint, remedy) from None
    processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=_traces_url(endpoint)))
    return TraceExport(processor, TracedCall(model=model), epoch_offset_s=epoch_offset_s)


def _traces_url(endpoint: str) -> str:
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _TRACES_PATH
