"""`ridgeline serve` as a process: options, keys, overload, deadlines, departures and the end."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.server.server_process import HANG_S, Answer, Process, read_answer, request_bytes, started

pytestmark = pytest.mark.golden

LONG = {"prompt": "Count: one two three", "max_tokens": 4000, "ignore_eos": True, "stream": True}


def serve(model: Path, *options: str, until: str = "ready ", **environment: str):
    return started("ridgeline", "serve", str(model), "--port", "0", *options, until=until, **environment)


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Process]:
    """The real model, two places and room for three more."""
    with serve(
        model_path, "--max-num-seqs", "2", "--max-num-waiting", "3", "--log-format", "json"
    ) as process:
        yield process


def post(
    server: Process, path: str = "/v1/completions", *, headers: dict[str, str] | None = None, **body: object
) -> Answer:
    text = json.dumps(body).encode()
    return server.send("POST", path, body=text, content_type="application/json", **(headers or {}))


def open_stream(server: Process, **body: object) -> socket.socket:
    """A streaming completion whose first event is here."""
    connection = server.connect()
    text = json.dumps({**LONG, **body}).encode()
    connection.sendall(request_bytes("POST", "/v1/completions", body=text, content_type="application/json"))
    received = b""
    while b"data: " not in received:
        received = connection.recv(65536, socket.MSG_PEEK)
        assert received
    return connection


def events(body: bytes) -> list[dict]:
    lines = [line[6:] for line in body.decode().split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-3:]
    return [json.loads(line) for line in lines[:-1]]


def finish_reason(answered: list[dict]) -> str:
    return [choice["finish_reason"] for event in answered for choice in event["choices"]][-1]


def request_lines(server: Process) -> list[dict]:
    return [json.loads(line) for line in server.err if '"message": "request"' in line]


def is_idle(server: Process) -> None:
    """What came before goes, and holds nothing then; the next good request is answered."""
    ends_at_s = time.monotonic() + HANG_S
    while True:
        answer, held = post(server, prompt="Hello", max_tokens=1), gauges(server)
        if answer.status == 200 and not any(held):
            return
        # A client's departure may not be noticed yet; its place makes the next one wait.
        assert answer.status in (200, 429), answer.body
        assert time.monotonic() < ends_at_s, held
        time.sleep(0.02)


def gauges(server: Process) -> list[float]:
    """Requests that run, requests that wait, the share of blocks in use."""
    page = server.send("GET", "/metrics").body.decode()
    return [
        float(line.split()[-1])
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        for line in page.splitlines()
        if line.startswith(f"ridgeline:{name}{{")
    ]


def test_a_request_has_one_line_with_its_figures(server: Process) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 4, "ignore_eos": True}
    answer = post(server, headers={"x_request_id": "line-1"}, **body)
    usage = json.loads(answer.body)["usage"]
    server.wait_for('"line-1"', server.err)
    (line,) = [line for line in request_lines(server) if line["request_id"] == "line-1"]
    assert (line["prompt_tokens"], line["completion_tokens"]) == (usage["prompt_tokens"], 4)
    assert line["finish_reason"] == "length"
    assert all(line[name] >= 0 for name in ("queue_ms", "ttft_ms", "tpot_ms", "cached_tokens", "duration_ms"))
    assert line["engine_request_id"] == json.loads(answer.body)["id"]
    assert "France" not in "".join(server.err)


def test_overload_is_429_at_once_and_the_accepted_end(server: Process) -> None:
    """Two run until they are let go, three wait behind them: whoever comes meanwhile is refused."""
    running = [open_stream(server) for _ in range(2)]
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(post, server, prompt="Hi", max_tokens=4, ignore_eos=True) for _ in range(3)]
        ends_at_s = time.monotonic() + HANG_S
        while gauges(server)[:2] != [2.0, 3.0] and time.monotonic() < ends_at_s:
            time.sleep(0.02)
        refused = [post(server, prompt="Hi", max_tokens=4) for _ in range(8)]
        for stream in running:
            stream.close()
        accepted = [one.result() for one in waiting]
    assert {answer.status for answer in refused} == {429}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert {answer.error["type"] for answer in refused} == {"rate_limit_error"}
    assert {answer.status for answer in accepted} == {200}
    page = server.send("GET", "/metrics").body.decode()
    (line,) = [
        line for line in page.splitlines() if "admission_rejections_total{" in line and "queue_full" in line
    ]
    assert float(line.split()[-1]) >= len(refused)
    is_idle(server)


def test_each_of_n_counts(server: Process) -> None:
    assert post(server, prompt="Hi", max_tokens=1, n=6).status == 400
    assert post(server, prompt="Hi", max_tokens=1, n=5).status == 200


@pytest.mark.parametrize("headers", [{"x_request_timeout": "2"}, {}])
def test_a_deadline_ends_a_request_with_what_it_has(server: Process, headers: dict[str, str]) -> None:
    body = {**LONG, **({} if headers else {"timeout": 2})}
    answered = events(post(server, headers=headers, **body).body)
    assert finish_reason(answered) == "timeout"
    assert len(answered) > 1
    is_idle(server)


@pytest.mark.parametrize("value", ["soon", "-1", "1e9"])
def test_a_wrong_deadline_is_named(server: Process, value: str) -> None:
    answer = post(server, prompt="Hi", headers={"x_request_timeout": value})
    assert (answer.status, answer.error["param"]) == (400, "x-request-timeout")


def test_nobody_generates_for_a_client_that_left(server: Process) -> None:
    before = len(request_lines(server))
    for _ in range(3):
        open_stream(server).close()
    for _ in range(2):  # one that leaves before its first token, one that leaves while it waits
        connection = server.connect()
        text = json.dumps({**LONG, "prompt": "word " * 3000}).encode()
        connection.sendall(request_bytes("POST", "/v1/completions", body=text))
        connection.close()
    ended: list[dict] = []
    for _ in range(100):
        is_idle(server)
        # The probes of `is_idle` have one token; a departure is never told how many it had. Lines of
        # requests that were refused earlier may come late.
        lines = [line for line in request_lines(server)[before:] if line["status"] in (200, 499)]
        ended = [line for line in lines if line.get("completion_tokens") != 1]
        if len(ended) == 5:
            break
    assert len(ended) == 5
    assert all("completion_tokens" not in line for line in ended)
    assert not [line for line in server.err if "Traceback" in line]


def test_sigterm_lets_a_stream_end(model_path: Path) -> None:
    with serve(model_path) as server, open_stream(server, max_tokens=300) as stream:
        server.popen.send_signal(signal.SIGTERM)
        server.wait_for("stopping: 1 sequences", server.err)
        refused = post(server, prompt="Hi")
        answered = events(read_answer(stream).body)
        assert server.wait() == 0
    assert (refused.status, refused.error["code"]) == (503, "draining")
    assert finish_reason(answered) == "length"


def test_a_drain_that_takes_too_long_ends_by_timeout(model_path: Path) -> None:
    with serve(model_path, "--drain-timeout-s", "0.3") as server, open_stream(server) as stream:
        server.popen.send_signal(signal.SIGTERM)
        answered = events(read_answer(stream).body)
        assert server.wait() == 0
    assert finish_reason(answered) == "timeout"


def test_keys_from_everywhere_and_shown_nowhere(tiny_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\nsk-file\n\n")
    options = ("--api-key", "sk-option", "--api-key-file", str(keys))
    with serve(tiny_model, *options, RIDGELINE_API_KEY="sk-env") as server:
        known = ["sk-option", "sk-file", "sk-env"]
        for key in known:
            assert server.send("GET", "/v1/models", authorization=f"Bearer {key}").status == 200
        schema = json.loads(server.send("GET", "/openapi.json", authorization="Bearer sk-env").body)
        for path, methods in schema["paths"].items():
            for method in methods:
                status = server.send(method.upper(), path, authorization="Bearer sk-wrong").status
                assert (status == 401) == (path not in ("/health", "/ping")), path
        title = Path(f"/proc/{server.popen.pid}/cmdline").read_bytes()
        assert server.end() == 0
    said = "".join(server.out + server.err).encode() + title
    assert not [key for key in known if key.encode() in said and key != "sk-file"]
    assert b"sk-option" not in title


def test_own_port_for_metrics_and_admin(tiny_model: Path) -> None:
    with serve(tiny_model, "--metrics-port", "0") as server:
        line = server.wait_for("metrics and admin on http://", server.err)
        port = int(line.partition("metrics and admin on http://127.0.0.1:")[2].split(",")[0])
        assert server.send("POST", "/reset_prefix_cache").status == 404
        assert server.send("GET", "/metrics").status == 404
        post(server, prompt="Hi", max_tokens=2, ignore_eos=True)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as admin:
            admin.sendall(request_bytes("POST", "/reset_prefix_cache"))
            assert read_answer(admin).status == 200
            admin.sendall(request_bytes("GET", "/metrics"))
            page = read_answer(admin).body.decode()
            assert 'ridgeline:generation_tokens_total{engine="0",model_name="tiny-llama"} 2.0' in page
            admin.sendall(request_bytes("HEAD", "/health"))
            assert read_answer(admin).status == 200
            admin.sendall(request_bytes("GET", "/v1/models"))
            assert read_answer(admin).status == 404


def test_how_to_open_up_is_said(tiny_model: Path) -> None:
    with serve(tiny_model) as server:
        server.wait_for("--host 0.0.0.0", server.err)
    with serve(tiny_model, "--host", "0.0.0.0") as server:
        server.wait_for("anyone who reaches 0.0.0.0 can use this server", server.err)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--api-key-file", "/nowhere"), "api_key_file='/nowhere': can't be read"),
        (("--api-key", "two words"), "api_key='…': a key is printable ASCII without spaces"),
        (("--port", "70000"), "port=70000: must be in 0…65535"),
        (("--host", "300.1.1.1"), "host='300.1.1.1': is no address"),
        (("--model", "other"), "model='other':"),
        (("--max-num-waiting", "-1"), "max_num_waiting=-1"),
        (("--request-timeout-s", "0"), "request_timeout_s=0"),
        (("--allowed-origins", "evil"), "allowed_origins='evil'"),
    ],
)
def test_a_wrong_option_is_one_line(tiny_model: Path, options: tuple[str, ...], problem: str) -> None:
    with started("ridgeline", "serve", str(tiny_model), *options, until="") as server:
        assert server.wait() == 2
    assert len(server.err) == 1
    assert server.err[0].startswith(f"ridgeline: error: {problem}"), server.err


def test_a_model_that_is_not_here_is_one_line(tmp_path: Path) -> None:
    with started("ridgeline", "serve", str(tmp_path / "no.gguf"), "--port", "0", until="") as server:
        assert server.wait() == 2
    assert "no.gguf" in server.err[-1]
    assert not [line for line in server.err if "Traceback" in line]


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ messages.clear() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    ],
)
def test_a_hostile_template_harms_one_request(tiny_model: Path, tmp_path: Path, template: str) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{% if messages[0]['content'] == 'go' %}" + template + "{% endif %}hi")
    with serve(tiny_model, "--chat-template", str(file)) as server:
        chat = {"max_tokens": 2}
        bad = post(server, "/v1/chat/completions", messages=[{"role": "user", "content": "go"}], **chat)
        good = post(server, "/v1/chat/completions", messages=[{"role": "user", "content": "no"}], **chat)
    assert (bad.status, bad.error["param"]) == (400, "messages")
    assert good.status == 200


def test_a_machine_without_a_profile_is_measured_once(tiny_model: Path, tmp_path: Path) -> None:
    with serve(tiny_model, "--no-calibrate", RIDGELINE_HOME=str(tmp_path)) as server:
        server.wait_for("machine profile: none, by --no-calibrate", server.err)
        assert predicted_steps(server) == 0
    assert not list(tmp_path.rglob("*.json"))
    with serve(tiny_model, RIDGELINE_HOME=str(tmp_path)) as server:
        server.wait_for("machine profile: measuring this machine for 3 s", server.err)
        assert predicted_steps(server) > 0
    (stored,) = (tmp_path / "hardware").glob("*.json")
    document = json.loads(stored.read_text())
    document["profile"]["is_stable"] = True  # neighbours may have shaken it; then it is measured again
    stored.write_text(json.dumps(document))
    with serve(tiny_model, RIDGELINE_HOME=str(tmp_path)) as server:
        server.wait_for("machine profile: measured earlier", server.err)
        assert not [line for line in server.err if "measuring" in line]
    with serve(tiny_model, "--executor", "reference", RIDGELINE_HOME=str(tmp_path)) as server:
        server.wait_for("machine profile: none; steps of --executor reference", server.err)


def predicted_steps(server: Process) -> float:
    assert post(server, prompt="Hi", max_tokens=2).status == 200
    page = server.send("GET", "/metrics").body.decode()
    (line,) = [
        line for line in page.splitlines() if line.startswith("ridgeline:step_predicted_seconds_count")
    ]
    return float(line.split()[-1])
