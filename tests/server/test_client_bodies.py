"""Requests as real clients write them (docs/clients.md), and the order on the wire that their clocks need."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest
from tests.server.conftest import Served
from tests.server.server_process import HANG_S, request_bytes

USER: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
USAGE = {"include_usage": True}
PARTS: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
CHAT, TEXT, RESPONSE = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "vllm openai": (
        TEXT,
        {"prompt": "a b", "repetition_penalty": 1.0, "max_tokens": 4, "logprobs": None, "ignore_eos": True}
        | {"stream": True, "stream_options": USAGE},
        "",
    ),
    "vllm openai-chat": (
        CHAT,
        {"messages": PARTS, "max_completion_tokens": 4, "ignore_eos": True}
        | {"stream": True, "stream_options": USAGE},
        "",
    ),
    "GuideLLM chat": (
        CHAT,
        {"stream": True, "stream_options": {**USAGE, "continuous_usage_stats": True}, "messages": PARTS}
        | {"max_completion_tokens": 4, "ignore_eos": True},
        "",
    ),
    "GuideLLM responses": (
        RESPONSE,
        {"stream": True, "max_output_tokens": 4, "ignore_eos": True}
        | {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
        "",
    ),
    "AIPerf responses": (
        RESPONSE,
        {"input": [{"role": "user", "content": "Hi", "type": "message"}], "stream": True}
        | {"max_output_tokens": 4, "ignore_eos": True, "stream_options": USAGE},
        "",
    ),
    "LangChain completions": (
        TEXT,
        {"prompt": ["a b"], "frequency_penalty": 0, "logprobs": None, "max_tokens": 4, "n": 1}
        | {"presence_penalty": 0, "seed": None, "temperature": 0.0, "top_p": 1},
        "",
    ),
    "Open WebUI": (
        CHAT,
        {"messages": USER, "stream": False, "max_tokens": 4, "temperature": 0.5, "top_k": 40, "top_p": 0.9}
        | {"min_p": 0.05, "frequency_penalty": 0.1, "presence_penalty": 0.1, "repeat_penalty": 1.1, "seed": 3}
        | {"stop": ["\n\n"], "logit_bias": {"10": -5}, "reasoning_effort": "low", "num_ctx": 64},
        "ignored unknown fields: num_ctx, repeat_penalty",
    ),
}


@pytest.mark.parametrize("client", list(BODIES))
def test_the_body_of_a_client_is_answered(tiny_server: Served, client: str) -> None:
    path, body, warning = BODIES[client]
    answer = httpx.post(f"{tiny_server.url}{path}", json={"model": "tiny-llama", **body}, timeout=HANG_S)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-ridgeline-warning", "") == warning
    if body.get("stream"):
        counts = [
            usage.get("completion_tokens", usage.get("output_tokens"))
            for event in answer.text.split("\n\n")
            if (usage := _usage_of(event)) is not None
        ]
        assert counts[-1] == 4
    tiny_server.assert_idle()


def test_the_role_comes_with_the_first_token(tiny_server: Served) -> None:
    """A client that takes the first chunk for the first token must not be told a token's time too early."""
    body = {"messages": USER, "max_completion_tokens": 4, "ignore_eos": True, "stream": True}
    raw = request_bytes("POST", CHAT, body=json.dumps(body).encode())
    with socket.create_connection(("127.0.0.1", tiny_server.port), timeout=HANG_S) as connection:
        connection.sendall(raw)
        reader = connection.makefile("rb")
        while reader.readline().strip():
            pass
        piece = reader.read(int(reader.readline(), 16))
    deltas = [
        json.loads(event.removeprefix(b"data: "))["choices"][0]["delta"]
        for event in piece.split(b"\n\n")[:-1]
    ]
    assert deltas[0]["role"] == "assistant"
    assert deltas[1]["content"]


def _usage_of(event: str) -> dict[str, int] | None:
    data = event.partition("data: ")[2]
    document = json.loads(data) if data.startswith("{") else {}
    usage: dict[str, int] | None = (document.get("response") or document).get("usage")
    return usage
