"""/metrics from invented steps: names, values by hand, quantiles near the exact ones, one fold of the log."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from ridgeline.core import events as ev
from ridgeline.errors import ConfigError
from ridgeline.metrics.buckets import (
    QUANTILE_ERROR,
    QUANTILE_RANGES_S,
    VLLM_BUCKETS,
    Distribution,
    family_limits,
    parse_buckets,
)
from ridgeline.metrics.percentiles import percentile
from ridgeline.metrics.prometheus import REJECTION_REASONS, Gauges, MetricsSettings, ServerMetrics
from ridgeline.outputs import FinishReason

SETTINGS = MetricsSettings(model_name="m", cache_config={"block_size": "16", "num_gpu_blocks": "64"})


def samples(metrics: ServerMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, _ = metrics.render()
    return {
        (
            s.name,
            tuple(sorted((k, v) for k, v in s.labels.items() if k not in ("model_name", "engine"))),
        ): s.value
        for family in text_string_to_metric_families(body.decode())
        for s in family.samples
    }


def answer(
    request_id: str, arrived_s: float, step_s: list[float], *, wait_s: float = 0.001
) -> Iterator[list[ev.Event]]:
    """A request alone: queued 1 ms after its arrival, scheduled after its wait, then a token a step."""
    now, prompt = arrived_s + 0.001 + wait_s, 8
    yield [
        ev.RequestArrived(arrived_s + 0.001, request_id, arrived_s, prompt, max_tokens=len(step_s)),
        ev.RequestScheduled(now, request_id, 4),
    ]
    computed = 4
    for index, seconds in enumerate(step_s):
        now += seconds
        events: list[ev.Event] = []
        if index == len(step_s) - 1:
            events.append(ev.RequestFinished(now, request_id, FinishReason.LENGTH, len(step_s)))
        scheduled = prompt - computed if index == 0 else 1
        step = ev.StepFinished(
            now, index, ((request_id, computed, scheduled),), seconds, {"lm_head": seconds / 2},
            {"lm_head": seconds / 4, "step_overhead": seconds / 4}, {"lm_head": seconds / 8},
        )  # fmt: skip
        computed += scheduled
        yield [*events, ev.TokensEmitted(now, ((request_id, 1),)), step]


def served(metrics: ServerMetrics, *requests: tuple[str, float, list[float]], wait_s: float = 0.001) -> None:
    for request in requests:
        for events in answer(*request, wait_s=wait_s):
            metrics.record(events)


def quantile(found: dict, name: str, q: float) -> float:
    """histogram_quantile, worked as Prometheus documents it: linear within the bucket."""
    rows = sorted(
        (float(dict(labels)["le"]), value) for (n, labels), value in found.items() if n == f"{name}_bucket"
    )
    return of_rank(rows, q * rows[-1][1])


def test_one_request_by_hand() -> None:
    metrics = ServerMetrics(SETTINGS)
    served(metrics, ("a", 10.0, [0.02, 0.005, 0.005]))
    found = samples(metrics)
    by_hand = {
        "prefix_cache_queries_total": 8,
        "prefix_cache_hits_total": 4,
        "prompt_tokens_total": 8,
        "prompt_tokens_cached_total": 4,
        "generation_tokens_total": 3,
        "num_preemptions_total": 0,
        "iteration_tokens_total_count": 3,
        "iteration_tokens_total_sum": 4 + 1 + 1 + 1,
        "time_to_first_token_seconds_sum": 0.022,
        "inter_token_latency_seconds_sum": 0.01,
        "inter_token_latency_seconds_count": 2,
        "request_time_per_output_token_seconds_sum": 0.005,
        "e2e_request_latency_seconds_sum": 0.032,
        "request_queue_time_seconds_sum": 0.001,
        "request_inference_time_seconds_sum": 0.03,
        "request_prefill_time_seconds_sum": 0.02,
        "request_decode_time_seconds_sum": 0.01,
        "request_prefill_kv_computed_tokens_sum": 4,
        "request_params_max_tokens_sum": 3,
        "request_max_num_generation_tokens_sum": 3,
        "step_predicted_seconds_sum": 0.015,
        "step_residual_ratio_sum": 6,
        "step_drift_ratio": 2,
    }
    assert {name: found[f"ridgeline:{name}", ()] for name in by_hand} == {
        name: pytest.approx(value) for name, value in by_hand.items()
    }
    assert found["ridgeline:roofline_fraction", (("op", "lm_head"),)] == pytest.approx(0.25)
    assert found["ridgeline:op_drift_ratio", (("op", "lm_head"),)] == pytest.approx(2)
    assert found["ridgeline:request_success_total", (("finished_reason", "length"),)] == 1
    assert found["ridgeline:request_success_total", (("finished_reason", "abort"),)] == 0
    assert found["ridgeline:prompt_tokens_by_source_total", (("source", "local_compute"),)] == 4
    assert found["ridgeline:step_seconds_count", (("phase_mix", "prefill"),)] == 1
    assert found["ridgeline:step_seconds_count", (("phase_mix", "decode"),)] == 2
    assert found["ridgeline:cache_config_info", (("block_size", "16"), ("num_gpu_blocks", "64"))] == 1


def test_the_page_is_the_same_however_often_one_looks() -> None:
    looked_at, counted_late = ServerMetrics(SETTINGS), ServerMetrics(SETTINGS)
    for number in range(5):  # of 4, 5, 6, 7 and 8 steps
        for events in answer(f"r{number}", 10.0 + number, [0.02, *[0.005] * (number + 3)]):
            looked_at.record(events)
            counted_late.record(events)
            samples(looked_at)
    assert samples(looked_at) == samples(counted_late)
    assert samples(counted_late)["ridgeline:iteration_tokens_total_count", ()] == 4 + 5 + 6 + 7 + 8


def test_c28_quantiles_are_near_and_one_token_answers_leave_no_zero() -> None:
    """200 one-token and 200 nine-token answers whose steps take 4 to 6 ms, after waits of 1 to 9 ms."""
    metrics = ServerMetrics(MetricsSettings(model_name="m", prefixes=("ridgeline", "vllm")))
    exact: dict[str, list[float]] = {"itl": [], "tpot": [], "prefill": [], "queue": []}
    at_s = 0.0
    for index in range(200):
        steps = [0.004 + 0.002 * ((7 * index + 3 * token) % 100) / 99 for token in range(9)]
        for name, answer_s, length in ((f"one-{index}", at_s, 1), (f"nine-{index}", at_s + 1, 9)):
            wait_s = 0.001 + 0.008 * ((11 * index + length) % 100) / 99
            served(metrics, (name, answer_s, steps[:length]), wait_s=wait_s)
            exact["queue"].append(wait_s)
        exact["itl"] += steps[1:]
        exact["tpot"].append(sum(steps[1:]) / 8)
        exact["prefill"] += [steps[0]] * 2
        at_s += 2
    found = samples(metrics)
    for prefix in ("ridgeline", "vllm"):
        for name, key in (
            ("inter_token_latency_seconds", "itl"),
            ("request_time_per_output_token_seconds", "tpot"),
            ("request_prefill_time_seconds", "prefill"),
            ("request_queue_time_seconds", "queue"),
        ):
            assert found[f"{prefix}:{name}_count", ()] == len(exact[key])
            for q in (0.5, 0.99):
                value = percentile(exact[key], 100 * q)
                assert quantile(found, f"{prefix}:{name}", q) == pytest.approx(value, rel=0.25)
        smallest = found[f"{prefix}:request_time_per_output_token_seconds_bucket", (("le", "0.0035"),)]
        assert smallest == 0


def test_c28_twenty_minutes_lie_in_a_finite_bucket() -> None:
    metrics = ServerMetrics(MetricsSettings(model_name="m", prefixes=("ridgeline", "vllm")))
    served(metrics, ("long", 0.0, [1200.0, 0.01]))
    found = samples(metrics)
    for prefix in ("ridgeline", "vllm"):
        for name in ("e2e_request_latency_seconds", "request_prefill_time_seconds"):
            assert found[f"{prefix}:{name}_bucket", (("le", "1920.0"),)] == 1
        assert found[f"{prefix}:time_to_first_token_seconds_bucket", (("le", "2560.0"),)] == 1


@pytest.mark.parametrize("family", QUANTILE_RANGES_S)
@given(data=st.data())
def test_c28_no_quantile_is_more_than_a_quarter_off(family: str, data: st.DataObject) -> None:
    """Whatever the values: the one of that rank and its bucket's ends are within a quarter of each other."""
    low, high = QUANTILE_RANGES_S[family]
    values = data.draw(st.lists(st.floats(low, high, exclude_min=True), min_size=1, max_size=40))
    rank = data.draw(st.integers(1, len(values)))
    counted = Distribution(family_limits(4096, {})[family])
    for value in values:
        counted.observe(value)
    rows = [(float(limit), count) for limit, count in counted.cumulative()]
    assert of_rank(rows, rank) == pytest.approx(sorted(values)[rank - 1], rel=QUANTILE_ERROR * (1 + 1e-9))


def of_rank(rows: list[tuple[float, float]], rank: float) -> float:
    """As Prometheus documents histogram_quantile: linear within the bucket that holds the rank."""
    low, below = 0.0, 0.0
    for limit, count in rows:
        if count >= rank:
            return low + (limit - low) * (rank - below) / (count - below)
        low, below = limit, count
    raise AssertionError


def test_c28_every_limit_of_vllm_is_there() -> None:
    limits = family_limits(4096, {})
    assert all(set(each) <= set(limits[family]) for family, each in VLLM_BUCKETS.items())
    assert limits["tokens"][-1] == 2000
    metrics = ServerMetrics(MetricsSettings(model_name="m", buckets=parse_buckets(["itl=0.1,0.2"])))
    buckets = "ridgeline:inter_token_latency_seconds_bucket"
    les = {dict(labels)["le"] for name, labels in samples(metrics) if name == buckets}
    assert les == {"0.1", "0.2", "+Inf"}


@pytest.mark.parametrize("word", ["itl", "itl=", "itl=2,1", "speed=1", "itl=0,1", "itl=a", "itl=1,inf"])
def test_buckets_that_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="metrics_buckets"):
        parse_buckets([word])


def test_both_formats_and_both_prefixes() -> None:
    metrics = ServerMetrics(MetricsSettings(model_name='a"b', prefixes=("ridgeline", "vllm")))
    served(metrics, ("a", 0.0, [0.01, 0.01]))
    body, kind = metrics.render("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    families = {family.name for family in parse_openmetrics(body.decode())}
    assert {"ridgeline:generation_tokens", "vllm:generation_tokens"} <= families
    body, kind = metrics.render("text/plain")
    assert kind.startswith("text/plain")
    assert b'vllm:generation_tokens_total{engine="0",model_name="a\\"b"} 2.0' in body


def test_gauges_http_and_rejections() -> None:
    metrics = ServerMetrics(SETTINGS)
    blocks = {"num_used_blocks": 1, "num_idle_blocks": 1, "num_free_blocks": 2}
    metrics.set_gauges(Gauges(num_requests_running=2, num_requests_waiting=3, **blocks))
    metrics.http_request("/v1/completions", "POST", 200)
    metrics.rejected("queue_full")
    found = samples(metrics)
    assert found["ridgeline:num_requests_running", ()] == 2
    assert found["ridgeline:num_requests_waiting_by_reason", (("reason", "capacity"),)] == 3
    assert found["ridgeline:kv_cache_usage_perc", ()] == 0.25
    assert found["ridgeline:admission_rejections_total", (("reason", "queue_full"),)] == 1
    assert found["ridgeline:admission_rejections_total", (("reason", "draining"),)] == 0
    labels = (("method", "POST"), ("path", "/v1/completions"), ("status", "200"))
    assert found["ridgeline:http_requests_total", labels] == 1
    metrics.set_gauges(Gauges())
    assert samples(metrics)["ridgeline:num_requests_running", ()] == 0
    assert samples(metrics)["ridgeline:kv_cache_usage_perc", ()] == 0


def test_several_choices_are_one_request_of_n() -> None:
    metrics = ServerMetrics(SETTINGS)
    for choice, length in ((0, 2), (1, 5)):
        fork = None if choice == 0 else "x-0"
        metrics.record([ev.RequestArrived(1.0, f"x-{choice}", 1.0, 4, num_choices=2, fork_of=fork)])
        for token in range(length):
            metrics.record([ev.TokensEmitted(2.0 + token, ((f"x-{choice}", 1),))])
        metrics.record([ev.RequestFinished(9.0, f"x-{choice}", FinishReason.STOP, length)])
    found = samples(metrics)
    assert found["ridgeline:request_max_num_generation_tokens_sum", ()] == 5
    assert found["ridgeline:request_max_num_generation_tokens_count", ()] == 1
    assert found["ridgeline:request_generation_tokens_sum", ()] == 7


class CountedSteps:
    """Each step is 10 FLOPs of the head and 1, 2, 3, 4 bytes of each kind."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []

    def add(self, rows: Sequence[tuple[int, int, int]]) -> None:
        self.rows += rows

    def by_op(self) -> Mapping[str, Sequence[int]]:
        return {"lm_head": [len(self.rows) * amount for amount in (10, 1, 2, 3, 4)]}


def test_work_by_op_when_somebody_counts_it() -> None:
    work = CountedSteps()
    metrics = ServerMetrics(SETTINGS, work=work)
    assert samples(metrics)["ridgeline:op_flops_total", (("op", "lm_head"),)] == 0  # rates start at 0
    served(metrics, ("a", 0.0, [0.01, 0.01]))
    found = samples(metrics)
    assert found["ridgeline:op_flops_total", (("op", "lm_head"),)] == 20
    assert found["ridgeline:op_bytes_total", (("kind", "kv_read"), ("op", "lm_head"))] == 4
    assert found["ridgeline:estimated_read_bytes_per_gpu_total", ()] == 6
    assert work.rows == [(4, 4, 1), (8, 1, 1)]


def test_the_roofline_is_that_of_the_last_half_to_whole_minute() -> None:
    metrics = ServerMetrics(SETTINGS)
    shown = []
    for at_s, least_s in ((0.0, 0.05), (31.0, 0.01), (62.0, 0.01), (63.0, 0.04)):
        metrics.record([ev.StepFinished(at_s, 0, (), 0.1, {"lm_head": 0.1}, None, {"lm_head": least_s})])
        shown.append(samples(metrics)["ridgeline:roofline_fraction", (("op", "lm_head"),)])
    assert shown == pytest.approx([0.5, 0.3, 0.1, 0.2])


def test_corrupted_requests_and_blocks_are_counted() -> None:
    metrics = ServerMetrics(SETTINGS)
    assert samples(metrics)["ridgeline:corrupted_requests_total", ()] == 0
    metrics.record([ev.BlocksAllocated(1.0, "a", (1,)), ev.LogitsCorrupted(2.0, "a")])
    metrics.record([ev.BlocksFreed(2.0, "a", (1,)), ev.BlocksEvicted(3.5, "b", (1,))])
    found = samples(metrics)
    assert found["ridgeline:corrupted_requests_total", ()] == 1
    assert found["ridgeline:kv_block_lifetime_seconds_sum", ()] == 2.5
    assert found["ridgeline:kv_block_idle_before_evict_seconds_sum", ()] == 1.5
    assert found["ridgeline:kv_block_reuse_gap_seconds_count", ()] == 0


def test_series_begin_at_zero() -> None:
    metrics = ServerMetrics(SETTINGS, work=CountedSteps())
    metrics.expect_answers([("/v1/completions", "POST")])
    found = samples(metrics)
    labels = (("method", "POST"), ("path", "/v1/completions"), ("status", "200"))
    assert found["ridgeline:http_requests_total", labels] == 0
    assert found["ridgeline:op_flops_total", (("op", "lm_head"),)] == 0
    assert found["ridgeline:op_seconds_total", (("op", "lm_head"),)] == 0
    for reason in REJECTION_REASONS:
        assert found["ridgeline:admission_rejections_total", (("reason", reason),)] == 0


def test_a_drift_is_named_with_its_cause() -> None:
    metrics = ServerMetrics(SETTINGS)
    for index in range(700):
        at_s = index / 10
        step = ev.StepFinished(at_s, index, (), 0.1, {"attention": 0.09}, {"attention": 0.05}, None)
        metrics.record([step])
    found = {key: value for key, value in samples(metrics).items() if key[0] == "ridgeline:drift_flagged"}
    ((_, labels),) = found
    assert dict(labels)["op"] == "attention"
    assert "?" in dict(labels)["cause"]


def test_counters_only_rise_while_somebody_reads() -> None:
    metrics, failures = ServerMetrics(SETTINGS), list[BaseException]()
    done = threading.Event()

    def read() -> None:
        last = 0.0
        try:
            while not done.is_set():
                now = samples(metrics)["ridgeline:generation_tokens_total", ()]
                assert now >= last
                last = now
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for index in range(300):
        served(metrics, (str(index), float(index), [0.01, 0.01]))
    done.set()
    reader.join()
    assert failures == []
    assert samples(metrics)["ridgeline:generation_tokens_total", ()] == 600
