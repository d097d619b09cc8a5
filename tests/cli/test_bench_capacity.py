"""`ridgeline bench capacity` as a process, against scripted servers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.cli.test_bench_report import command
from tests.loadgen.fake_server import Exchange, Request, answering, running

SMALL = ["--random-input-len", "4", "--random-output-len", "2", "--num-prompts", "10", "--model", "m"]
QUICK = [*SMALL, "--probe-seconds", "0.1", "--max-repeats", "2", "--num-warmups", "0"]


def capacity(url: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "ridgeline", "bench", "capacity", "--url", url, *words]


def finish(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=120)


def metrics(_: Request) -> str:
    return "ridgeline:num_requests_running 0\nridgeline:num_requests_waiting 0\n"


def test_a_server_that_always_meets(tmp_path: Path) -> None:
    out, page = tmp_path / "a.json", tmp_path / "a.html"
    words = [
        "--goodput",
        "ttft:60000",
        "tpot:60000",
        "--max-rate",
        "80",
        "--json",
        str(out),
        "--html",
        str(page),
    ]
    with running(answering(2), metrics=metrics) as server:
        done = finish(capacity(server.url, *QUICK, *words))
        seeds = {tuple(request.json["prompt"]) for request in server.generations}
        num_sent = len(server.generations)
    assert done.returncode == 0, done.stderr
    assert "one at a time: 10 requests" in done.stdout
    assert "at least 80 requests/s (the upper limit)" in done.stdout
    document = json.loads(out.read_text())
    assert document["verdict"] == "always"
    assert (document["capacity"]["rate"], document["capacity"]["high"]) == (80, None)
    assert document["probes"][0]["rate"] == 0
    assert document["levels"][-1]["num_runs"] == 2
    assert len(seeds) == num_sent  # no prompt twice: the prefix cache would make the second run faster
    assert "Capacity of m" in page.read_text()


def test_a_server_that_never_meets() -> None:
    with running(answering(2, first_s=0.03)) as server:
        done = finish(capacity(server.url, *QUICK, "--goodput", "ttft:1"))
    assert done.returncode == 0, done.stderr
    assert "NO RATE" in done.stdout
    assert "one at a time already miss it" in done.stdout


def test_a_server_that_breaks_under_load() -> None:
    """One place: 30 ms each, and whoever waits behind others loses."""
    place = asyncio.Lock()

    async def script(exchange: Exchange) -> None:
        async with place:
            await answering(2, first_s=0.03)(exchange)

    words = ["--goodput", "ttft:200", "--target", "0.8", "--precision", "0.5", "--max-probes", "12"]
    with running(script) as server:
        done = finish(capacity(server.url, *QUICK[:4], "--num-prompts", "40", *QUICK[6:], *words))
    assert done.returncode == 0, done.stderr
    assert "capacity " in done.stdout
    assert "just above, ttft breaks first" in done.stdout
    assert "can't be told apart from outside" in done.stdout


def test_ctrl_c_says_what_is_known() -> None:
    reached = threading.Event()

    async def script(exchange: Exchange) -> None:
        await answering(2, first_s=0.05)(exchange)
        if exchange.request.index == 14:
            reached.set()

    with running(script) as server:
        words = [*SMALL, "--probe-seconds", "60", "--goodput", "ttft:5000", "--num-warmups", "0"]
        process = subprocess.Popen(
            capacity(server.url, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert reached.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "nothing is known yet" in out
    assert "1 probes" in out
    assert "Traceback" not in err


def test_a_server_that_answers_nothing() -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.whole("500 Internal Server Error", {"error": {"message": "broken"}})

    with running(refuse) as server:
        done = finish(capacity(server.url, *QUICK, "--goodput", "ttft:100"))
    assert done.returncode == 2
    assert "answers no request: HTTP 500: broken" in done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "goodput"),
        (["--goodput", "speed:1"], "goodput"),
        (["--goodput", "ttft:1", "--target", "1.5"], "target"),
        (["--goodput", "ttft:1", "--precision", "0"], "precision"),
        (["--goodput", "ttft:1", "--num-prompts", "3"], "num_prompts"),
        (["--goodput", "ttft:1", "--probe-seconds", "0"], "probe_seconds"),
        (["--goodput", "ttft:1", "--max-rate", "0"], "max_rate"),
        (["--goodput", "ttft:1", "--html", "/nowhere/a.html"], "html"),
    ],
)
def test_a_wrong_option_is_named(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("capacity", "--url", "http://127.0.0.1:9", "--model", "m", *words) == 2
    errors = capsys.readouterr().err
    assert named in errors
    assert len(errors.splitlines()) == 1


def test_a_trace_has_its_own_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    words = ["--dataset", "azure", "--dataset-path", str(path), "--goodput", "ttft:1"]
    assert command("capacity", "--model", "m", *words) == 2
    assert "instants of its own" in capsys.readouterr().err
