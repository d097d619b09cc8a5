"""Whole runs against the scripted server, and what their JSON says."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from tests.loadgen.fake_server import Exchange, Script, answering, completion, running

from ridgeline.loadgen.benchmark import execute_load, plan_load
from ridgeline.loadgen.result import ReportSettings, load_result, without_detail
from ridgeline.loadgen.server_account import ServerAccount
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.metrics.slo import parse_slos
from ridgeline.workload.synthetic import RandomLengths

VLLM_KEYS = {
    *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts"),
    *("request_rate", "burstiness", "max_concurrency", "duration", "completed", "failed"),
    *("total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput"),
    *("output_throughput", "total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests"),
    *("rtfx", "latencies", "queue_times"),
    *(f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl")),
}
VLLM_DETAILS = {
    *("input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors"),
    *("server_queue_times", "server_ttfts"),
}
OUR_KEYS = {
    *("goodput", "ridgeline", "failures", "valid", "invalid_because", "token_count_source", "chunk_tokens"),
    *("requested_input_tokens", "cached_tokens", "conditions"),
}


def measure(
    script: Script,
    *,
    count: int,
    traffic: TrafficSettings | None = None,
    report: ReportSettings | None = None,
    timeout_s: float = 20.0,
) -> dict[str, Any]:
    dataset = DatasetSettings(num_prompts=count, random=RandomLengths(input_len=16, output_len=4))
    with running(script) as server:
        target = TargetSettings(url=server.url, model="m", request_timeout_s=timeout_s)
        plan = plan_load(target, dataset, traffic or TrafficSettings())
        document = load_result(plan, execute_load(plan), report or ReportSettings())
    return json.loads(json.dumps(document, allow_nan=False))


def test_a_good_run_carries_all_keys() -> None:
    report = ReportSettings(slos=parse_slos(["ttft:60000"]), save_detailed=True, metadata={"gpu": "none"})
    document = measure(answering(4, first_s=0.02, gap_s=0.01), count=5, report=report)
    assert set(document) >= VLLM_KEYS | VLLM_DETAILS | OUR_KEYS | {"requests", "gpu"}
    assert (document["completed"], document["failed"], document["request_rate"]) == (5, 0, "inf")
    assert (document["total_input_tokens"], document["requested_input_tokens"]) == (80, 80)
    assert document["total_output_tokens"] == 20
    assert document["output_lens"] == [4] * 5
    assert (document["token_count_source"], document["chunk_tokens"]) == ("usage", "usage")
    assert document["goodput"]["attainment"] == 1.0
    assert document["request_goodput"] == pytest.approx(5 / document["duration"])
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "icl_ms", "e2e_ms", "lateness_ms"):
        assert document["ridgeline"][name]["low_n"], name
    assert document["ridgeline"]["itl_ms"]["n"] == 15
    assert document["ridgeline"]["ttft_ms"]["p50"] >= 20
    assert document["requests"][0]["outcome"] == "ok"
    assert document["requests"][0]["finish_reason"] == "length"


def test_the_servers_own_times_stand_beside_the_clients() -> None:
    dataset = DatasetSettings(num_prompts=2, random=RandomLengths(input_len=4, output_len=2))
    with running(answering(2)) as server:
        plan = plan_load(TargetSettings(url=server.url, model="m"), dataset, TrafficSettings())
        run = execute_load(plan)
    first = run.records[0].request_id
    account = ServerAccount(times={first: {"queue_s": 0.1, "ttft_s": 0.3}})
    report = ReportSettings(save_detailed=True)
    document = load_result(plan, run, report, server=account)
    assert document["server_queue_times"] == [0.1, None]
    assert document["server_ttfts"] == [0.3, None]
    assert [each["server"] for each in document["requests"]] == [{"queue_s": 0.1, "ttft_s": 0.3}, None]
    alone = load_result(plan, run, report)
    assert alone["server_ttfts"] == [None, None]
    assert without_detail(alone).keys() == load_result(plan, run, ReportSettings()).keys()


def test_details_only_when_asked_for() -> None:
    document = measure(answering(2), count=2)
    assert not VLLM_DETAILS & set(document)
    assert "requests" not in document
    assert len(document["latencies"]) == len(document["queue_times"]) == 2


async def mixed(exchange: Exchange) -> None:
    """Of each ten: four answered in 100 ms, four refused at once, one cut, one that never answers."""
    kind = exchange.request.index % 10
    if kind < 4:
        await answering(3, first_s=0.1)(exchange)
    elif kind < 8:
        await exchange.whole("429 Too Many Requests", {"error": {"message": "full"}})
    elif kind == 8:
        await exchange.head()
        await exchange.event(completion("a"))
        exchange.writer.close()
    else:
        await asyncio.sleep(60)


def test_c23_failing_fast_does_not_look_good() -> None:
    report = ReportSettings(slos=parse_slos(["ttft:5000"]), save_detailed=True)
    document = measure(mixed, count=100, report=report, timeout_s=3.0)
    assert (document["completed"], document["failed"]) == (40, 60)
    assert document["failures"] == {"rejected": 40, "timeout": 10, "truncated": 10}
    assert document["goodput"]["attainment"] == 0.4
    assert document["duration"] >= 3.0
    assert document["request_goodput"] == pytest.approx(40 / document["duration"])
    assert document["ridgeline"]["ttft_ms"]["n"] == 40
    assert document["mean_ttft_ms"] >= 100
    assert sum(length == 0 for length in document["output_lens"]) == 60
    assert sum(error != "" for error in document["errors"]) == 60
    assert document["failure_reasons"]["HTTP 429: full"] == 40


def test_c23_a_run_of_failures_alone_has_nulls() -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.whole("503 Service Unavailable", "down")

    document = measure(refuse, count=7, report=ReportSettings(slos=parse_slos(["ttft:1"])))
    assert (document["completed"], document["failures"]) == (0, {"rejected": 7})
    assert document["mean_ttft_ms"] is None
    assert document["p99_itl_ms"] is None
    assert document["ridgeline"]["e2e_ms"]["p99"] is None
    assert document["goodput"]["attainment"] == 0.0
    assert document["output_throughput"] == 0.0
    assert document["max_output_tokens_per_s"] is None


def test_a_cap_is_named_as_what_shaped_the_load() -> None:
    traffic = TrafficSettings(request_rate=100, burstiness=math.inf, max_concurrency=1)
    report = ReportSettings(percentile_metrics=["e2el", "client_queue_time", "e2el_including_client_queue"])
    document = measure(answering(2, first_s=0.1), count=6, traffic=traffic, report=report)
    assert "cap of 1" in document["shaped_by"]
    assert document["loop"] == "open"
    assert document["ridgeline"]["e2e_ms"]["max"] >= 500
    assert document["p99_e2el_ms"] < document["ridgeline"]["e2e_ms"]["p99"]
    assert document["mean_e2el_including_client_queue_ms"] == pytest.approx(
        document["mean_e2el_ms"] + document["mean_client_queue_time_ms"]
    )


def test_coalesced_chunks_without_their_counts_are_flagged() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.event(completion("a"))
        await exchange.event(completion("b" * 3, finish="length"))
        await exchange.event({"choices": [], "usage": {"prompt_tokens": 16, "completion_tokens": 4}})
        await exchange.event("[DONE]")
        await exchange.end()

    document = measure(script, count=2)
    assert (document["chunk_tokens"], document["chunk_tokens_surplus"]) == ("unknown", 4)


def test_without_usage_chunks_are_counted() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.event(completion("a"))
        await exchange.event(completion("b", finish="length"))
        await exchange.event("[DONE]")
        await exchange.end()

    document = measure(script, count=2)
    assert document["token_count_source"] == "chunks"
    assert document["total_output_tokens"] == 4
    assert document["total_input_tokens"] == 32


def test_percentile_names_have_no_needless_point() -> None:
    report = ReportSettings(percentile_metrics=["ttft"], metric_percentiles=[50.0, 99.9])
    document = measure(answering(2), count=2, report=report)
    assert {"p50_ttft_ms", "p99.9_ttft_ms"} <= set(document)
    assert "mean_itl_ms" not in document


def test_warmups_and_probes_are_no_part_of_the_result() -> None:
    traffic = TrafficSettings(num_warmups=3, request_rate=20, probe_request_rate=20)
    document = measure(answering(2, first_s=0.02), count=6, traffic=traffic)
    assert (document["completed"], document["num_warmups"]) == (6, 3)
    assert document["probe_completed"] >= 1
    assert document["probe_failed"] == 0
    assert document["probe_max_e2el_ms"] >= 20
