"""/metrics and /debug/requests of a live server, over a real socket."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.metrics.test_grafana import asked_names
from tests.server.conftest import Served, serve

from ridgeline.async_llm import AsyncLLM
from ridgeline.config.server import ServerConfig
from ridgeline.metrics.prometheus import MetricsSettings, ServerMetrics
from ridgeline.perf.op_costs import step_costs
from ridgeline.perf.step_shape import StepRow, StepShape
from ridgeline.server.observation import describe_engine
from ridgeline.server.request_ids import KnownIds


@pytest.fixture(scope="module")
def observed(tiny_model: Path) -> Iterator[Served]:
    metrics = ServerMetrics(MetricsSettings(model_name="tiny", prefixes=("ridgeline", "vllm")))
    llm = AsyncLLM(str(tiny_model), num_threads=1, listeners=[metrics])
    describe_engine(metrics, llm)
    yield from serve(llm, ServerConfig(), metrics)


def get(server: Served, path: str, **headers: str) -> tuple[int, str, str]:
    request = urllib.request.Request(server.url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers["content-type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["content-type"], error.read().decode()


def test_a_live_server_counts_and_tells(observed: Served) -> None:
    model = observed.client.models.list().data[0].id
    answer = observed.client.completions.create(
        model=model, prompt=[3, 4, 5], max_tokens=4, extra_body={"ignore_eos": True}
    )
    status, kind, body = get(observed, "/metrics")
    assert (status, kind.split(";")[0]) == (200, "text/plain")
    families = list(text_string_to_metric_families(body))
    values = {(s.name, s.labels.get("path")): s.value for family in families for s in family.samples}
    assert values["ridgeline:generation_tokens_total", None] == answer.usage.completion_tokens
    assert values["vllm:prompt_tokens_total", None] == answer.usage.prompt_tokens
    assert values["ridgeline:num_requests_running", None] == 0
    assert values["ridgeline:http_requests_total", "/v1/completions"] == 1
    names = {name for name, _ in values} | {family.name for family in families}
    assert asked_names("ridgeline") | asked_names("vllm") <= names
    status, _, body = get(observed, f"/debug/requests/{answer.id}")
    document = json.loads(body)
    assert (status, document["completion_tokens"]) == (200, answer.usage.completion_tokens)
    assert {entry["token"] for entry in document["late_tokens"]} == {0, 1, 2, 3}
    assert all(entry["cause"] for entry in document["late_tokens"])


def test_the_clients_own_id_is_understood(observed: Served) -> None:
    model = observed.client.models.list().data[0].id
    for prompt in ([3, 4, 5], [[3, 4, 5], [6, 7]]):
        answer = observed.client.completions.create(
            model=model, prompt=prompt, max_tokens=2, extra_headers={"x-request-id": "mine-1"}
        )
        status, _, body = get(observed, "/debug/requests/mine-1")
        assert (status, json.loads(body)["prompt_tokens"]) == (200, 3)
        assert json.loads(body)["request_id"].startswith(answer.id)


def test_the_oldest_ids_are_forgotten() -> None:
    ids = KnownIds(capacity=2)
    for request_id in ("a", "b", "a", "c"):
        ids.remember(request_id, f"engine-{request_id}")
    assert [ids.engine_id(each) for each in "abc"] == ["engine-a", None, "engine-c"]


def test_the_load_generator_learns_the_servers_times(observed: Served, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello", "output_tokens": 4}\n' * 3)
    command = [sys.executable, "-m", "ridgeline", "bench", "serve", "--url", observed.url, "--json", "-"]
    dataset = ["--dataset", "custom", "--dataset-path", str(prompts), "--save-detailed"]
    done = subprocess.run([*command, *dataset], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert all(each["server"]["ttft_s"] > 0 for each in result["requests"])
    assert len(result["server_queue_times"]) == 3
    assert None not in result["server_queue_times"]


def test_openmetrics_on_request(observed: Served) -> None:
    _, kind, body = get(observed, "/metrics", accept="application/openmetrics-text")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")


def test_a_request_that_nobody_knows(observed: Served) -> None:
    status, _, body = get(observed, "/debug/requests/nobody")
    assert status == 404
    assert "nobody" in json.loads(body)["error"]["message"]
    _, _, body = get(observed, "/metrics")
    assert 'path="/debug/requests/{request_id}"' in body  # a template, not what the client wrote


@pytest.mark.parametrize(("query", "param"), [("ttft_ms=-1", "ttft_ms"), ("choice=x", "choice")])
def test_a_bad_query_has_openais_shape(observed: Served, query: str, param: str) -> None:
    status, _, body = get(observed, f"/debug/requests/any?{query}")
    error = json.loads(body)["error"]
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert query.partition("=")[2] in error["message"]


def test_each_choice_is_shown_and_a_limit_on_ttft_heeded(observed: Served) -> None:
    model = observed.client.models.list().data[0].id
    answer = observed.client.completions.create(
        model=model, prompt=[3, 4, 5], max_tokens=2, n=2, temperature=1, extra_body={"ignore_eos": True}
    )
    for choice in (0, 1):
        status, _, body = get(observed, f"/debug/requests/{answer.id}?choice={choice}&ttft_ms=3600000")
        document = json.loads(body)
        assert (status, document["completion_tokens"]) == (200, 2)
        assert document["request_id"].endswith(f"-{choice}")
        assert {entry["token"] for entry in document["late_tokens"]} == {1}
    assert get(observed, f"/debug/requests/{answer.id}?choice=2")[0] == 404


def test_the_work_done_and_the_configuration_are_shown(observed: Served) -> None:
    limits, model = observed.llm.parts.limits, observed.llm.parts.model_shape
    before = samples(observed)
    observed.client.completions.create(
        model=observed.llm.model_name, prompt=[3, 4, 5], max_tokens=1, extra_body={"cache_salt": "alone"}
    )
    after = samples(observed)
    costs = step_costs(model, StepShape([StepRow(0, 3, 1)]))
    for op, cost in costs.items():
        name = "ridgeline:op_flops_total"
        assert after[name, op] - before.get((name, op), 0) == cost.flops
    name = "ridgeline:estimated_flops_per_gpu_total"
    assert after[name, None] - before[name, None] == sum(cost.flops for cost in costs.values())
    _, _, body = get(observed, "/metrics")
    (info,) = [line for line in body.splitlines() if line.startswith("ridgeline:cache_config_info{")]
    assert f'block_size="{limits.block_size}"' in info
    assert f'num_gpu_blocks="{limits.num_blocks}"' in info


def samples(server: Served) -> dict[tuple[str, str | None], float]:
    _, _, body = get(server, "/metrics")
    families = text_string_to_metric_families(body)
    return {(s.name, s.labels.get("op")): s.value for family in families for s in family.samples}
