"""A form that grows too complex while it is followed: the caller's error, told once, and nobody else's."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import httpx
import pytest
from tests.grammar.conftest import new_fragile_grammar
from tests.server.conftest import NewServer, Served
from tests.server.test_completions import events, post

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "add"}}
FORM: dict[str, Any] = {"type": "json_object"}
ASKED = {
    "completions": ("/v1/completions", {"prompt": "hi", "response_format": FORM}, "response_format"),
    "structured": (
        "/v1/completions",
        {"prompt": "hi", "structured_outputs": {"json": True}},
        "structured_outputs",
    ),
    "n": ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "response_format": FORM}, "response_format"),
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "response_format": FORM}, "response_format"),
    "tools": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required"},
        "tools",
    ),
    "responses": ("/v1/responses", {"input": "hi", "text": {"format": FORM}}, "text"),
}


@pytest.fixture
def fragile(new_server: NewServer, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A server on which every form fails after its first token."""
    server = new_server(chat_template="{% if tools %}T{% endif %}{{ messages[0].content }}")
    grammar = new_fragile_grammar(server.llm.tokenizer)
    monkeypatch.setattr(server.llm.parts.input_processor._grammar_compiler, "_compiled", lambda form: grammar)
    return server


def wait_for_lines(caplog: pytest.LogCaptureFixture) -> None:
    """A request's line is written after its answer."""
    ends_at_s = time.monotonic() + 60
    while not caplog.records and time.monotonic() < ends_at_s:
        time.sleep(0.01)


def is_refusal(error: dict[str, Any], field: str) -> bool:
    assert "Too many items" in error["message"]
    assert "\n" not in error["message"]
    return (error["type"], error["param"], error["code"]) == ("invalid_request_error", field, "form_failed")


@pytest.mark.parametrize("name", ASKED)
def test_a_whole_answer_is_a_400_that_names_the_field(
    fragile: Served, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, body, field = ASKED[name]
    with caplog.at_level(logging.INFO, logger="ridgeline"):
        response = post(fragile, path, **body)
        wait_for_lines(caplog)
    assert response.status_code == 400, response.text
    assert response.headers["content-type"] == "application/json"
    assert is_refusal(response.json()["error"], field)
    (line,) = caplog.records
    assert line.name == "ridgeline.requests"
    told = line.fields  # type: ignore[attr-defined]
    assert (told["status"], told["error"]) == (400, "FormFailedError")
    assert "error" in told["finish_reason"]
    fragile.assert_idle()
    assert post(fragile, "/v1/completions", prompt="hi", max_tokens=2).status_code == 200


@pytest.mark.parametrize("name", ["completions", "structured", "chat", "tools"])
def test_a_stream_says_so_in_its_last_chunk_and_once_as_an_error(
    fragile: Served, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, body, field = ASKED[name]
    with caplog.at_level(logging.INFO, logger="ridgeline"):
        *chunks, last = events(post(fragile, path, **body, stream=True))
        wait_for_lines(caplog)
    assert chunks[-1]["choices"][0]["finish_reason"] == "error"
    assert is_refusal(last["error"], field)
    assert len(caplog.records) == 1
    fragile.assert_idle()


def test_a_streamed_response_fails_by_its_events(fragile: Served) -> None:
    path, body, field = ASKED["responses"]
    text = post(fragile, path, **body, stream=True).text
    kinds = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    assert kinds.count("error") == 1
    assert kinds[-1] == "response.failed"
    assert '"code":"invalid_prompt"' in text
    assert f'"param":"{field}"' in text
    fragile.assert_idle()


def test_neighbours_go_on(fragile: Served) -> None:
    free = {"prompt": "hi", "max_tokens": 30, "ignore_eos": True, "temperature": 0}
    alone = post(fragile, "/v1/completions", **free).json()["choices"]
    with httpx.stream("POST", f"{fragile.url}/v1/completions", json={**free, "stream": True}) as stream:
        lines = stream.iter_lines()
        first = next(lines)
        assert post(fragile, "/v1/completions", **ASKED["n"][1]).status_code == 400
        chunks = [json.loads(line[6:]) for line in (first, *lines) if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == alone[0]["text"]
