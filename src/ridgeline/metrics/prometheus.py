"""ServerMetrics: the server's figures in Prometheus' exposition format, under vLLM's names."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics

from ridgeline.core.events import Event
from ridgeline.metrics.buckets import Distribution, family_limits
from ridgeline.metrics.drift import DriftWatch
from ridgeline.metrics.server_totals import HISTOGRAMS, ServerTotals, WorkCounter

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE = openmetrics.CONTENT_TYPE_LATEST
_Values = Mapping[Any, float]
"""Values of the labels besides those of all families → the sample."""
REJECTION_REASONS = (
    *("queue_full", "loading", "draining", "failed"),
    *("too_long", "too_many_sequences", "unknown_model", "bad_request"),
)
"""Refusals with 429, with 503, and with 400 or 404."""
_STEPS_AT_A_TIME = 8
"""A forward pass drives Python out of the caches: steps counted one after the other cost half as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """What the names and labels are. `buckets` replaces families; `cache_config` becomes labels."""

    model_name: str
    prefixes: Sequence[str] = ("ridgeline",)
    max_model_len: int = 131072
    buckets: Mapping[str, Sequence[float]] = field(default_factory=dict)
    cache_config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The engine right now, by its scheduler. `queue_wait_predicted_s` of a newcomer; None: unknown."""

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    num_used_blocks: int = 0
    num_idle_blocks: int = 0
    num_free_blocks: int = 0
    num_slack_slots: int = 0
    num_dropped_events: int = 0
    queue_wait_predicted_s: float | None = None


class ServerMetrics:
    """An event listener that renders what it counted; safe for several threads.

    A step costs a few additions in plain Python; the metrics' objects are built when somebody asks.
    `work` counts FLOPs and bytes of the steps.
    """

    def __init__(
        self,
        settings: MetricsSettings,
        *,
        work: WorkCounter | None = None,
    ) -> None:
        self._settings = settings
        self._drift_watch = DriftWatch()
        self._totals = ServerTotals(family_limits(settings.max_model_len, settings.buckets), work)
        self._pending: list[Sequence[Event]] = []
        self._gauges = Gauges()
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._rejections = Counter(dict.fromkeys(REJECTION_REASONS, 0))
        self._lock = threading.Lock()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def describe_engine(
        self, *, max_model_len: int, cache_config: Mapping[str, str], work: WorkCounter
    ) -> None:
        """What is known once the model is loaded; must come before the first event."""
        with self._lock:
            self._count_pending()
            assert not any(self._totals.ops.measured.values()), "steps were counted without this"
            self._settings = replace(
                self._settings, max_model_len=max_model_len, cache_config=dict(cache_config)
            )
            self._totals = ServerTotals(family_limits(max_model_len, self._settings.buckets), work)

    def record(self, events: Iterable[Event]) -> None:
        """Take the events of one step; they are counted some steps at a time, and before anybody looks."""
        with self._lock:
            self._pending.append(tuple(events))
            if len(self._pending) >= _STEPS_AT_A_TIME:
                self._count_pending()

    def set_gauges(self, gauges: Gauges) -> None:
        """Show these from now on."""
        self._gauges = gauges

    def http_request(self, path: str, method: str, status: int) -> None:
        """Count an answer; `path` is the route's template, never what a client wrote."""
        with self._lock:
            self._requests[path, method, str(status)] += 1

    def expect_answers(self, routes: Iterable[tuple[str, str]]) -> None:
        """Begin the series of good answers at 0, for each (path, method)."""
        with self._lock:
            self._requests.update({(path, method, "200"): 0 for path, method in routes})

    def rejected(self, reason: str) -> None:
        """Count a request for work that was refused, by one of `REJECTION_REASONS`."""
        with self._lock:
            self._rejections[reason] += 1

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """(body, content type) in the format that an `Accept` header asks for."""
        if "application/openmetrics-text" in accept:
            # Names written with underscores would lose their colon in the samples alone.
            body: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
                self._registry, escaping=openmetrics.ALLOWUTF8
            )
            return body, OPENMETRICS_CONTENT_TYPE
        return generate_latest(self._registry), TEXT_CONTENT_TYPE

    def collect(self) -> Iterator[Metric]:
        """Every family under every prefix; prometheus_client asks for it."""
        settings = self._settings
        with self._lock:  # for as long as numbers are read, not while they are written out: steps wait for it
            self._count_pending()
            names = [_Names(prefix, settings.model_name) for prefix in settings.prefixes]
            families = [family for each in names for family in self._families(each)]
        return iter(families)

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are known without collecting."""
        return iter(())

    def _count_pending(self) -> None:
        for events in self._pending:
            self._totals.record(events)
            self._drift_watch.record(events)
        self._pending.clear()

    def _families(self, names: _Names) -> Iterator[Metric]:
        yield from _gauge_families(names, self._gauges)
        yield from _counter_families(names, self._totals)
        for name, (_, text) in HISTOGRAMS.items():
            yield names.histogram(name, text, {(): self._totals.histograms[name]})
        yield names.histogram(
            "step_seconds",
            "Execution time of a step by what it held",
            {(mix,): each for mix, each in self._totals.step_seconds.items()},
            ("phase_mix",),
        )
        yield from _op_families(names, self._totals)
        yield from self._drift_families(names)
        yield names.counter(
            "http_requests", "HTTP answers", dict(self._requests), ("path", "method", "status")
        )
        rejected = {(reason,): count for reason, count in self._rejections.items()}
        yield names.counter(
            "admission_rejections", "Requests for work that were refused", rejected, ("reason",)
        )
        config = dict(self._settings.cache_config)
        yield names.gauge("cache_config_info", "Configuration", {tuple(config.values()): 1}, tuple(config))

    def _drift_families(self, names: _Names) -> Iterator[Metric]:
        drift = self._drift_watch.drift
        flagged = {(drift.op, drift.cause): drift.op_ratio} if drift is not None else {}
        yield names.gauge(
            "drift_flagged",
            "Measured by predicted time of the op that makes steps drift by more than 25 % over a minute",
            flagged,
            ("op", "cause"),
        )


class _Names:
    """Builds families of one prefix with the labels that all share."""

    def __init__(self, prefix: str, model_name: str) -> None:
        self._prefix = prefix
        self._values = (model_name, "0")

    def gauge(self, name: str, text: str, values: _Values, labels: Sequence[str] = ()) -> Metric:
        family = GaugeMetricFamily(f"{self._prefix}:{name}", text, labels=("model_name", "engine", *labels))
        for each, value in values.items():
            family.add_metric((*self._values, *each), value)
        return family

    def counter(self, name: str, text: str, values: _Values, labels: Sequence[str] = ()) -> Metric:
        family = CounterMetricFamily(f"{self._prefix}:{name}", text, labels=("model_name", "engine", *labels))
        for each, value in values.items():
            family.add_metric((*self._values, *each), value)
        return family

    def histogram(
        self,
        name: str,
        text: str,
        values: Mapping[Any, Distribution],
        labels: Sequence[str] = (),
    ) -> Metric:
        family = HistogramMetricFamily(
            f"{self._prefix}:{name}", text, labels=("model_name", "engine", *labels)
        )
        for each, distribution in values.items():
            family.add_metric((*self._values, *each), distribution.cumulative(), distribution.total)
        return family


def _gauge_families(names: _Names, gauges: Gauges) -> Iterator[Metric]:
    waiting = gauges.num_requests_waiting
    num_blocks = gauges.num_used_blocks + gauges.num_idle_blocks + gauges.num_free_blocks
    yield names.gauge("num_requests_running", "Requests that run", {(): gauges.num_requests_running})
    yield names.gauge("num_requests_waiting", "Requests that wait", {(): waiting})
    yield names.gauge(
        "num_requests_waiting_by_reason", "Requests that wait", {("capacity",): waiting}, ("reason",)
    )
    usage = gauges.num_used_blocks / num_blocks if num_blocks else 0.0
    yield names.gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0…1", {(): usage})
    states = {
        ("used",): gauges.num_used_blocks,
        ("idle_cached",): gauges.num_idle_blocks,
        ("free",): gauges.num_free_blocks,
    }
    yield names.gauge("kv_blocks", "KV blocks by state", states, ("state",))
    yield names.gauge("kv_slack_tokens", "Slots of used blocks without a token", {(): gauges.num_slack_slots})
    wait_s = gauges.queue_wait_predicted_s
    predicted = {} if wait_s is None else {(): wait_s}
    yield names.gauge("queue_wait_predicted_seconds", "Wait of a request that came now", predicted)
    yield names.counter("events_dropped", "Events the log had no room for", {(): gauges.num_dropped_events})


def _counter_families(names: _Names, totals: ServerTotals) -> Iterator[Metric]:
    counts = totals.counts
    for name, text in (
        ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache"),
        ("prefix_cache_hits", "Prompt tokens found in the prefix cache"),
        ("prompt_tokens", "Prompt tokens, cached ones included"),
        ("prompt_tokens_cached", "Prompt tokens that needed no computing"),
        ("generation_tokens", "Generated tokens"),
        ("num_preemptions", "Preemptions"),
        ("corrupted_requests", "Requests that ended because their logits had no finite maximum"),
    ):
        yield names.counter(name, text, {(): counts[name]})
    cached = counts["prompt_tokens_cached"]
    sources = {("local_compute",): counts["prompt_tokens"] - cached, ("local_cache_hit",): cached}
    yield names.counter("prompt_tokens_by_source", "Prompt tokens by source", sources, ("source",))
    finished = {(reason,): count for reason, count in totals.finished.items()}
    yield names.counter("request_success", "Finished requests by reason", finished, ("finished_reason",))


def _op_families(names: _Names, totals: ServerTotals) -> Iterator[Metric]:
    """Seconds and work by op since the start; shares of the roofline and of the prediction lately."""
    for name, text, seconds in (
        ("op_seconds", "Measured seconds", totals.ops.measured),
        ("op_predicted_seconds", "Predicted seconds", totals.ops.predicted),
        ("op_bound_seconds", "Least seconds by the machine's ceilings", totals.ops.bound),
    ):
        yield names.counter(name, text, {(op,): value for op, value in seconds.items()}, ("op",))
    flops = {(op,): value for op, value in totals.op_flops.items()}
    yield names.counter("op_flops", "FLOPs by op", flops, ("op",))
    yield names.counter("op_bytes", "Bytes by op and kind", dict(totals.op_bytes), ("op", "kind"))
    yield names.counter("estimated_flops_per_gpu", "FLOPs", {(): sum(totals.op_flops.values())})
    for name, kinds in (("read", ("weight", "kv_read")), ("write", ("kv_written",))):
        amount = sum(count for (_, kind), count in totals.op_bytes.items() if kind in kinds)
        yield names.counter(f"estimated_{name}_bytes_per_gpu", "Bytes, activations left out", {(): amount})
    recent = totals.recent()
    roofline = {(op,): least / took for op, (took, _, least) in recent.items() if least and took > 0}
    yield names.gauge("roofline_fraction", "Least by measured time, last minute", roofline, ("op",))
    ratios = {(op,): took / expected for op, (took, expected, _) in recent.items() if expected > 0}
    yield names.gauge("op_drift_ratio", "Measured by predicted time, last minute", ratios, ("op",))
    took, expected = (sum(each[i] for each in recent.values()) for i in (0, 1))
    steps = {(): took / expected} if expected > 0 else {}
    yield names.gauge("step_drift_ratio", "Measured by predicted time of steps, last minute", steps)
