"""`ridgeline bench serve` as a process, against the scripted server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.loadgen.fake_server import Exchange, answering, running

from ridgeline.cli.main import run

FEW = ["--num-prompts", "6", "--random-input-len", "8", "--random-output-len", "3"]


def bench(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ridgeline", "bench", "serve", "--url", url, *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=os.environ)


def models(_: object) -> dict:
    return {"data": [{"id": "the-model"}]}


def test_a_good_run(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with running(answering(3), v1__models=models) as server:
        slos = ["--goodput", "ttft:60000", "tpot:60000", "--goodput", "e2el:60000"]
        done = bench(server.url, *FEW, *slos, "--json", str(out), "--metadata", "a=1", "b=2", "--seed", "3")
        bodies = [request.json for request in server.generations]
        ids = {request.headers["x-request-id"] for request in server.generations}
    assert done.returncode == 0, done.stderr
    assert "TTFT" in done.stdout
    assert "6 good requests" in done.stdout
    document = json.loads(out.read_text())
    assert document["goodput"]["slo"] == {"ttft": 60000, "tpot": 60000, "e2el": 60000}
    assert (document["a"], document["b"], document["model_id"]) == ("1", "2", "the-model")
    assert len(ids) == 6
    assert {body["model"] for body in bodies} == {"the-model"}
    assert all(len(body["prompt"]) == 8 and body["max_tokens"] == 3 and body["ignore_eos"] for body in bodies)
    assert len({tuple(body["prompt"]) for body in bodies}) == 6


def test_the_same_run_by_all_dialects() -> None:
    with running(answering(3)) as server:
        done = bench(server.url, *FEW, "--model", "m", "--dialect", "all")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(("TTFT  ", "TPOT  "))]
    assert {line.split()[1] for line in lines} >= {"ridgeline", "vllm", "sglang", "guidellm", "llama.cpp"}


@pytest.mark.parametrize("end", ["/", "/v1", "/v1/"])
def test_a_url_with_or_without_its_version(end: str) -> None:
    with running(answering(3), v1__models=models) as server:
        done = bench(server.url + end, *FEW)
        assert {request.path for request in server.generations} == {"/v1/completions"}
    assert done.returncode == 0, done.stderr


def test_headers_keys_and_bodies() -> None:
    words = ["--model", "m", "--api-key", "secret", "--header", "x-a=1", "--extra-body", '{"temperature": 0}']
    with running(answering(3)) as server:
        done = bench(server.url, *FEW, *words, "--served-model-name", "served")
        request = server.generations[0]
    assert done.returncode == 0, done.stderr
    assert (request.headers["authorization"], request.headers["x-a"]) == ("Bearer secret", "1")
    assert (request.json["temperature"], request.json["model"]) == (0, "served")
    assert "secret" not in done.stdout + done.stderr


def test_failures_come_first_and_show_in_the_status() -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.request.index % 2:
            await exchange.whole("429 Too Many Requests", {"error": {"message": "full"}})
        else:
            await answering(3)(exchange)

    with running(script) as server:
        done = bench(server.url, *FEW, "--model", "m")
    assert done.returncode == 1
    assert done.stdout.startswith("FAILED: 3 of 6 requests (50 %): rejected 3")
    assert "HTTP 429: full" in done.stdout


def test_c23_a_run_with_60_per_cent_errors_says_so() -> None:
    """Of 20: 8 answered, 8 refused at once, 2 cut, 2 that never answer: the rate counts their time."""

    async def script(exchange: Exchange) -> None:
        kind = exchange.request.index % 10
        if kind < 4:
            await answering(3)(exchange)
        elif kind < 8:
            await exchange.whole("429 Too Many Requests", {"error": {"message": "full"}})
        elif kind == 8:
            await exchange.head()
            exchange.writer.close()
        else:
            await asyncio.sleep(60)

    words = ["--model", "m", "--num-prompts", "20", "--request-timeout-s", "2", "--json", "-"]
    goal = ["--goodput", "ttft:60000"]
    with running(script) as server:
        done = bench(server.url, *FEW[2:], *words, *goal)
        shown = bench(server.url, *FEW[2:], *words[:-2], *goal)
    assert (done.returncode, shown.returncode) == (1, 1)
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert (document["completed"], document["failed"]) == (8, 12)
    assert sum(document["failures"].values()) == 12
    assert (document["failures"]["rejected"], document["failures"]["timeout"]) == (8, 2)
    assert document["goodput"]["attainment"] == 0.4
    assert document["duration"] >= 2
    assert document["request_goodput"] == pytest.approx(8 / document["duration"])
    assert document["request_rate"] == "inf"
    assert shown.stdout.startswith("FAILED: 12 of 20 requests (60 %)")


def test_saved_and_appended(tmp_path: Path) -> None:
    words = ["--model", "m", "--result-dir", str(tmp_path), "--save-detailed", "--label", "night"]
    with running(answering(3)) as server:
        assert bench(server.url, *FEW, *words, "--save-result").returncode == 0
        [path] = tmp_path.iterdir()
        assert path.name.startswith("night-infqps-m-")
        for _ in range(2):
            assert (
                bench(server.url, *FEW, *words, "--append-result", "--result-filename", "all").returncode == 0
            )
    lines = (tmp_path / "all").read_text().splitlines()
    assert [len(json.loads(line)["requests"]) for line in lines] == [6, 6]


def test_ctrl_c_reports_what_was_done() -> None:
    async def script(exchange: Exchange) -> None:
        await answering(2)(exchange)
        if exchange.request.index == 1:
            reached.set()

    reached = threading.Event()
    with running(script) as server:
        words = ["--model", "m", "--request-rate", "2", "--burstiness", "inf", "--num-prompts", "500"]
        command = [sys.executable, "-m", "ridgeline", "bench", "serve", "--url", server.url, *FEW[2:], *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert reached.wait(30)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "INTERRUPTED" in out
    assert "TTFT" in out
    assert "Traceback" not in err


@pytest.mark.parametrize("moment", ["warm-up", "run", "account"])
def test_ctrl_c_at_any_moment_gives_the_report(moment: str) -> None:
    """The server falls silent in the warm-up, in the run, or when it is asked about late tokens after it."""
    silent = threading.Event()

    async def script(exchange: Exchange) -> None:
        if moment == "warm-up" or (moment == "run" and exchange.request.index == 4):
            silent.set()
            await asyncio.sleep(120)
        await answering(3)(exchange)

    def account(_: object) -> object:
        if moment == "account":
            silent.set()
            threading.Event().wait(8)
        return {}

    with running(script) as server:
        server.prefixes["/debug/requests/"] = account
        words = [*FEW, "--model", "m", "--num-warmups", "2" if moment == "warm-up" else "0"]
        command = [sys.executable, "-m", "ridgeline", "bench", "serve", "--url", server.url, *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert silent.wait(30)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    num_good = {"warm-up": 0, "run": 5, "account": 6}[moment]
    assert f"{num_good} good requests" in out
    assert "INTERRUPTED" in out
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--request-rate", "0"], "request_rate"),
        (["--burstiness", "0"], "burstiness"),
        (["--max-concurrency", "0"], "max_concurrency"),
        (["--goodput", "speed:3"], "goodput"),
        (["--goodput", "ttft:-3"], "goodput"),
        (["--percentile-metrics", "ttft,speed"], "percentile_metrics"),
        (["--metric-percentiles", "x"], "metric_percentiles"),
        (["--ramp-up-strategy", "linear"], "ramp_up_start_rps"),
        (
            ["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "0", "--ramp-up-end-rps", "2"],
            "ramp_up_start",
        ),
        (["--ramp-up-start-rps", "1"], "ramp_up_strategy"),
        (["--dataset", "nope"], "dataset"),
        (["--dataset", "sharegpt"], "dataset_path"),
        (["--extra-body", "[1]"], "extra_body"),
        (["--header", "x"], "header"),
        (["--header", "x=a\nb"], "header"),
        (["--num-prompts", "0"], "num_prompts"),
        (["--url", "ftp://x"], "url"),
        (["--self-timed"], "self_timed"),
        (["--dialect", "klingon"], "dialect"),
    ],
)
def test_a_wrong_option_is_named(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        assert run(["bench", "serve", "--url", "http://127.0.0.1:9", "--model", "m", *words]) == 2
    finally:
        signal.signal(signal.SIGTERM, terminate)
    errors = capsys.readouterr().err
    assert named in errors
    assert len(errors.splitlines()) == 1


def test_no_server_and_no_model_is_the_users_mistake() -> None:
    done = bench("http://127.0.0.1:9", *FEW)
    assert done.returncode == 2
    assert "can't be reached" in done.stderr


def test_no_server_is_a_run_of_failures() -> None:
    done = bench("http://127.0.0.1:9", *FEW, "--model", "m")
    assert done.returncode == 1
    assert "connection 6" in done.stdout


def test_a_server_that_is_not_ready() -> None:
    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(0)

    with running(script) as server:
        done = bench(server.url, *FEW, "--model", "m", "--ready-check-timeout-sec", "0.3")
    assert done.returncode == 2
    assert "not ready" in done.stderr
