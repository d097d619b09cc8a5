"""What a server's /metrics says of a stretch, and what grew between two loads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.loadgen.fake_server import answering, running

from ridgeline.core import events as ev
from ridgeline.loadgen.bottleneck import (
    LoadPicture,
    count_causes,
    find_bottleneck,
    first_to_break,
    load_picture,
)
from ridgeline.loadgen.server_metrics import ServerStretch, ServerWatch, parse_metrics, stretch
from ridgeline.metrics.client_record import Chunk, ClientRecord, Outcome
from ridgeline.metrics.prometheus import Gauges, MetricsSettings, ServerMetrics
from ridgeline.outputs import FinishReason

BEFORE = """# HELP ridgeline:num_requests_running in a batch
# TYPE ridgeline:num_requests_running gauge
ridgeline:num_requests_running{model_name="m",engine="0"} 0.0
ridgeline:num_requests_waiting{model_name="m",engine="0"} 0.0
ridgeline:request_queue_time_seconds_sum{model_name="m"} 1.0
ridgeline:request_queue_time_seconds_count{model_name="m"} 10.0
ridgeline:num_preemptions_total{model_name="m"} 2.0
"""
AFTER = """ridgeline:num_requests_running{model_name="m",engine="0"} 4.0
ridgeline:num_requests_waiting{model_name="m",engine="0"} 6.0
ridgeline:kv_cache_usage_perc{model_name="m"} 0.25
ridgeline:request_queue_time_seconds_sum{model_name="m"} 2.0
ridgeline:request_queue_time_seconds_count{model_name="m"} 15.0
ridgeline:request_prefill_time_seconds_sum{model_name="m"} 0.5
ridgeline:request_prefill_time_seconds_count{model_name="m"} 5
ridgeline:step_seconds_sum{phase_mix="decode"} 0.8
ridgeline:step_seconds_count{phase_mix="decode"} 80
ridgeline:step_seconds_sum{phase_mix="mixed"} 0.6
ridgeline:step_seconds_count{phase_mix="mixed"} 20
ridgeline:num_preemptions_total{model_name="m"} 5.0
not a line
x{ 3
y nonsense
"""


def measured() -> ServerStretch:
    after = parse_metrics(AFTER)
    return stretch(parse_metrics(BEFORE), after, [after])


def test_a_stretch_by_hand() -> None:
    found = measured()
    assert found.stages == pytest.approx({"queue_ms": 200.0, "prefill_ms": 100.0})
    assert found.steps["decode"] == pytest.approx((80, 10.0))
    assert found.steps["mixed"] == pytest.approx((20, 30.0))
    assert (found.preemptions, found.running, found.waiting, found.kv_usage) == (3.0, 4.0, 6.0, 0.25)


def test_vllms_prefix_and_nothing_known() -> None:
    assert parse_metrics("vllm:num_requests_waiting 3")[("num_requests_waiting", "")] == 3
    empty = stretch({}, {}, [])
    assert (empty.stages, empty.steps, empty.preemptions, empty.running) == ({}, {}, None, None)


def test_ridgelines_own_page_under_both_prefixes() -> None:
    """The names that ServerMetrics renders are those that are read here."""
    metrics = ServerMetrics(MetricsSettings(model_name="m", prefixes=("ridgeline", "vllm")))
    before = parse_metrics(metrics.render()[0].decode())
    metrics.record(
        [
            ev.RequestArrived(0.0, "a", 0.0, 8, max_tokens=2),
            ev.RequestScheduled(0.1, "a", 0),
            ev.TokensEmitted(0.3, (("a", 1),)),
            ev.StepFinished(0.3, 0, (("a", 0, 8),), 0.2, {}),
        ]
    )
    metrics.record(
        [
            ev.RequestFinished(0.35, "a", FinishReason.LENGTH, 2),
            ev.TokensEmitted(0.35, (("a", 1),)),
            ev.StepFinished(0.35, 1, (("a", 8, 1),), 0.05, {}),
        ]
    )
    metrics.set_gauges(Gauges(num_requests_running=3, num_requests_waiting=1))
    after = parse_metrics(metrics.render()[0].decode())
    found = stretch(before, after, [after])
    assert (found.running, found.waiting, found.preemptions) == (3.0, 1.0, 0.0)
    assert found.stages == pytest.approx(
        {"queue_ms": 100.0, "prefill_ms": 200.0, "decode_ms": 50.0, "ttft_ms": 300.0, "itl_ms": 50.0}
    )
    assert found.steps["prefill"] == pytest.approx((1, 200.0))
    assert found.steps["decode"] == pytest.approx((1, 50.0))


def picture(server: ServerStretch | None, **changes: float) -> LoadPicture:
    figures = {"ttft_ms": 50.0, "tpot_ms": 10.0, "gap_p50_ms": 9.0, "gap_mean_ms": 10.0, "concurrency": 2.0}
    return LoadPicture(rate=1.0, num_good=10, server=server, **{**figures, **changes})


def figures(**stages: float) -> ServerStretch:
    return ServerStretch(stages=stages, steps={}, preemptions=0, running=1, waiting=0, kv_usage=0.1)


def test_a_queue_that_grew() -> None:
    below = picture(figures(queue_ms=5.0, prefill_ms=30.0))
    above = picture(figures(queue_ms=300.0, prefill_ms=60.0), ttft_ms=380.0)
    found = find_bottleneck("ttft", below, above)
    assert (found.source, found.slo) == ("server", "ttft")
    assert [(share.name.split(",")[0], share.growth_ms) for share in found.shares] == [
        ("queue", 295.0),
        ("prefill", 30.0),
        ("outside the engine", 5.0),
    ]
    assert any("KV preemptions above: 0" in fact for fact in found.facts)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "x", ""])
def test_a_value_that_is_no_number_is_passed_over(value: str) -> None:
    text = f"vllm:num_requests_running {value}\nvllm:num_requests_waiting 2\n"
    assert parse_metrics(text) == {("num_requests_waiting", ""): 2.0}


def test_no_part_of_a_latency_is_negative() -> None:
    """A run cut short: the server also counts the long waits of those whom the client did not wait for."""
    above = picture(figures(queue_ms=900.0, prefill_ms=60.0), ttft_ms=800.0)
    found = find_bottleneck("ttft", picture(figures(queue_ms=5.0, prefill_ms=30.0)), above)
    assert [share.name.split(",")[0] for share in found.shares] == ["queue", "prefill"]


def test_steps_that_grew() -> None:
    base = ServerStretch(
        stages={}, steps={"decode": (100, 8.0)}, preemptions=None, running=None, waiting=None, kv_usage=None
    )
    found = find_bottleneck("tpot", picture(base), picture(measured()))
    assert found.source == "server"
    ends = [end for share in found.shares for end in (share.below_ms, share.above_ms)]
    assert ends == pytest.approx([0.0, 4.0, 8.0, 10.0])
    assert "prefill" in found.shares[0].name


@pytest.mark.parametrize(("slo", "named"), [("ttft", "can't be told apart"), ("tpot", "seen from outside")])
def test_from_outside_it_says_so(slo: str, named: str) -> None:
    found = find_bottleneck(slo, picture(None), picture(None, ttft_ms=90.0, gap_mean_ms=20.0))
    assert found.source == "client"
    assert all(named in share.name for share in found.shares)
    assert found.shares[0].growth_ms == pytest.approx({"ttft": 40.0, "tpot": 10.0}[slo])


def test_no_good_request_leaves_no_shares() -> None:
    nothing = load_picture(3.0, [], 0.0, None)
    assert (nothing.ttft_ms, nothing.concurrency, nothing.num_good) == (None, None, 0)
    assert find_bottleneck("ttft", nothing, nothing).shares == []
    assert find_bottleneck("tpot", nothing, nothing).shares == []


def test_a_picture_by_hand() -> None:
    record = ClientRecord(
        request_id="a",
        scheduled_at_s=1.0,
        sent_at_s=1.0,
        chunks=[Chunk(1.5, 1), Chunk(1.6, 1), Chunk(1.8, 1)],
        outcome=Outcome.OK,
    )
    found = load_picture(2.0, [record], 1.6, None)
    assert (found.ttft_ms, found.tpot_ms) == pytest.approx((500.0, 150.0))
    assert (found.gap_p50_ms, found.gap_mean_ms) == pytest.approx((150.0, 150.0))
    assert found.concurrency == pytest.approx(0.5)


def test_causes_by_the_servers_event_log() -> None:
    late = [
        {
            "causes": [
                {"cause": "queued", "lack": "kv_blocks"},
                {"cause": "prefill shared its step", "by": "x"},
            ]
        },
        {"causes": [{"cause": "queued", "lack": "kv_blocks"}, {"cause": 3}, "odd"]},
        {"causes": [{"cause": "queued", "lack": None}]},
        {"causes": None},
        {},
    ]
    causes = count_causes([*(each | {"kind": "ttft"} for each in late), {"causes": [{"cause": "preempted"}]}])
    expected = [("queued (kv_blocks)", 2), ("prefill shared its step", 1), ("queued", 1)]
    assert list(causes["ttft"].items()) == expected
    assert causes["itl"] == {"preempted": 1}
    told = {
        slo: [fact for fact in find_bottleneck(slo, picture(None), above).facts if "event log" in fact]
        for above in [replace(picture(None), causes=causes)]
        for slo in ("ttft", "tpot", "e2el")
    }
    [first], [gaps] = told["ttft"], told["tpot"]
    assert first.startswith("causes of first tokens over their limit")
    assert "queued (kv_blocks) 2 ×, prefill shared its step 1 ×" in first
    assert gaps == "causes of the longest gaps above, by the server's event log: preempted 1 ×"
    assert told["e2el"] == [first, gaps]


def test_the_first_to_break_is_the_least_met() -> None:
    assert first_to_break({"ttft": 0.9, "tpot": 0.7}) == "tpot"
    assert first_to_break({}) is None


def test_a_watch_reads_both_ends_and_the_middle() -> None:
    pages = iter([BEFORE, AFTER, AFTER])
    with running(answering(1), metrics=lambda _: next(pages)) as server:
        watch = ServerWatch(server.url, {})
        watch.begin()
        found = watch.end()
        assert watch.is_idle() is False
    assert found is not None
    assert (found.preemptions, found.waiting) == (3.0, 6.0)


def test_a_server_without_metrics_tells_nothing() -> None:
    with running(answering(1)) as server:
        watch = ServerWatch(server.url, {})
        watch.begin()
        assert watch.end() is None
        assert watch.is_idle() is None
