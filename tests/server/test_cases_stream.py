"""The shared cases of kinds m–o: clients that leave, streams to the letter, names and keys."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.conftest import NewServer, Served
from tests.server.server_process import started
from tests.server.test_chunks import HANG_S, GatedExecutor, reading
from tests.server.test_completions import post
from tests.server.test_disconnects import raw_post

from ridgeline.core.events import RequestFinished
from ridgeline.outputs import FinishReason

LONG: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 240, "ignore_eos": True, "stream": True}


def gated(server: Served) -> GatedExecutor:
    engine = server.llm.parts.engine
    engine._executor = gate = GatedExecutor(engine._executor)
    return gate


def wait_until(condition: Callable[[], bool]) -> None:
    ends_at_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < ends_at_s
        time.sleep(0.005)


def wait_for_departures(server: Served, num_sequences: int) -> None:
    """Until the server has noticed; it needs no step for that."""
    wait_until(lambda: server.state.admission.num_sequences == num_sequences)


def aborted(server: Served) -> list[RequestFinished]:
    events = server.llm.parts.event_log.events()
    ended = [event for event in events if isinstance(event, RequestFinished)]
    return [event for event in ended if event.finish_reason is FinishReason.ABORT]


@pytest.mark.parametrize("when", ["after the first chunk", "amid the prefill", "in the queue"])
def test_c16_nobody_generates_for_a_client_that_left(
    new_server: NewServer, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    server = new_server(max_num_seqs=1, max_num_batched_tokens=32)
    expected = post(server, "/v1/completions", prompt=[9, 8], max_tokens=4, temperature=0).json()
    gate = gated(server)
    if when == "after the first chunk":
        with reading(server, "/v1/completions", LONG) as stream:
            gate.allow(1)
            stream.next()
    elif when == "amid the prefill":
        connection = raw_post(server, {**LONG, "prompt": [5 + i % 90 for i in range(200)]})
        gate.allow(1)  # the first 32 of 200 tokens
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.close()
    else:
        running = raw_post(server, LONG)  # holds the only place
        assert running.recv(12) == b"HTTP/1.1 200"
        waiting = raw_post(server, LONG)
        wait_until(lambda: not server.llm.engine._commands.empty())
        gate.allow(1)  # the engine takes requests between two steps
        assert waiting.recv(12) == b"HTTP/1.1 200"
        waiting.close()
        wait_for_departures(server, 1)
        running.close()
    wait_for_departures(server, 0)
    # The step that runs meanwhile ends, and nothing of the request is left: no other step was allowed.
    gate.allow(1)
    server.assert_idle()
    wait_until(lambda: len(aborted(server)) == (2 if when == "in the queue" else 1))
    assert all(event.num_output_tokens <= 2 for event in aborted(server))
    gate.allow(100)
    again = post(server, "/v1/completions", prompt=[9, 8], max_tokens=4, temperature=0).json()
    assert again["choices"] == expected["choices"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
}


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": True}])
def test_c17_a_stream_is_exact_to_the_byte(
    tiny_server: Served, path: str, options: dict[str, Any] | None
) -> None:
    body = {**PROMPTS[path], "max_tokens": 5, "ignore_eos": True, "temperature": 0, "stream": True}
    response = post(tiny_server, path, **body, **({"stream_options": options} if options else {}))
    *parts, done, rest = response.content.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert all(part.startswith(b'data: {"id":"') and b"\n" not in part for part in parts)
    chunks = [json.loads(part[6:]) for part in parts]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    wants_usage = bool(options and options["include_usage"])
    if wants_usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 5
        assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + 5
    assert all(("usage" in chunk) == wants_usage for chunk in chunks)
    assert all(chunk.get("usage") is None for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "length"
    if path == "/v1/chat/completions":
        assert [choice["delta"].get("role") for choice in choices] == ["assistant"] + [None] * (
            len(choices) - 1
        )


@pytest.mark.parametrize("path", PROMPTS)
def test_c17_usage_without_a_stream_is_refused(tiny_server: Served, path: str) -> None:
    for fields in ({"stream": False}, {}):
        response = post(tiny_server, path, **PROMPTS[path], **fields, stream_options={"include_usage": True})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "stream_options")
    tiny_server.assert_idle()


KEY = "sk-c18-secret"
LIVENESS = ("/health", "/ping")


def test_c18_a_key_guards_every_door_and_no_page_may_knock(tiny_model: Path) -> None:
    with started(
        "ridgeline", "serve", str(tiny_model), "--port", "0", "--api-key", KEY, until="ready "
    ) as server:
        document = json.loads(server.send("GET", "/openapi.json", authorization=f"Bearer {KEY}").body)
        routes = [(path, method) for path, methods in document["paths"].items() for method in methods]
        assert {"/v1/completions", "/tokenize", "/metrics", "/reset_prefix_cache"} <= {r for r, _ in routes}
        for path, method in routes:
            for authorization in (None, "Bearer wrong", KEY, f"Basic {KEY}", f"Bearer {KEY}x"):
                given = {"authorization": authorization} if authorization else {}
                answer = server.send(method.upper(), path, origin="http://evil.example", **given)
                assert not [name for name in answer.headers if name.startswith("access-control")]
                if path in LIVENESS:
                    assert answer.status == 200
                    continue
                assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer"), path
                assert answer.error["type"] == "authentication_error"
            for scheme in ("Bearer", "bearer"):
                opened = server.send(method.upper(), path, authorization=f"{scheme} {KEY}")
                assert opened.status != 401, path
        preflight = server.send(
            "OPTIONS", "/v1/completions", origin="http://evil.example", access_control_request_method="POST"
        )
        assert not [name for name in preflight.headers if name.startswith("access-control")]
        body = json.dumps({"model": "nope", "prompt": "hi"}).encode()
        unknown = server.send("POST", "/v1/completions", body=body, authorization=f"Bearer {KEY}")
        title = Path(f"/proc/{server.popen.pid}/cmdline").read_bytes().decode()
        assert server.end() == 0
    assert unknown.status == 404
    assert set(unknown.error) == {"message", "type", "param", "code"}
    assert (unknown.error["param"], unknown.error["code"]) == ("model", "model_not_found")
    assert "tiny-llama" in unknown.error["message"]
    assert KEY not in "".join([*server.out, *server.err, title, unknown.body.decode()])


def test_c18_configured_origins_and_only_those(tiny_model: Path) -> None:
    options = ("--port", "0", "--allowed-origins", "https://good.example")
    with started("ridgeline", "serve", str(tiny_model), *options, until="ready ") as server:
        for origin, allowed in (("https://good.example", True), ("http://evil.example", False)):
            preflight = {"origin": origin, "access_control_request_method": "POST"}
            for answer in (
                server.send("OPTIONS", "/v1/completions", **preflight),
                server.send("GET", "/v1/models", origin=origin),
            ):
                assert (answer.headers.get("access-control-allow-origin") == origin) == allowed
        assert server.end() == 0


def test_c18_an_unknown_model_is_404_everywhere(tiny_server: Served) -> None:
    for path, body in {**PROMPTS, "/v1/responses": {"input": "hi"}, "/tokenize": {"prompt": "hi"}}.items():
        response = post(tiny_server, path, **body, model="nope")
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (404, "model", "model_not_found")
        assert "tiny-llama" in error["message"]
    assert httpx.get(f"{tiny_server.url}/v1/models/nope").status_code == 404
    tiny_server.assert_idle()
