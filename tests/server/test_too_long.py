"""Prompts that can't fit: refused before they are tokenised, named and counted."""

from __future__ import annotations

import httpx
import pytest
from tests.server.conftest import NewServer, Served

from ridgeline.config.server import ServerConfig
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer

LONG = "word " * 200_000
CHAT = [{"role": "user", "content": LONG}]


def rejections(server: Served, reason: str) -> float:
    page = httpx.get(f"{server.url}/metrics", timeout=30).text
    (line,) = [line for line in page.splitlines() if 'rejections_total{engine="0"' in line and reason in line]
    return float(line.split()[-1])


@pytest.fixture
def no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Tokenizer, text: str) -> list[int]:
        raise AssertionError(f"{len(text)} characters are tokenised")

    monkeypatch.setattr(Tokenizer, "_encode_plain", refuse)


@pytest.mark.usefixtures("no_tokenizer")
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": LONG}, "prompt"),
        ("/v1/completions", {"prompt": [LONG, LONG], "stream": True}, "prompt"),
        ("/v1/chat/completions", {"messages": CHAT}, "messages"),
        ("/v1/responses", {"input": LONG}, "input"),
    ],
)
def test_a_megabyte_is_refused_untokenised(new_server: NewServer, path: str, body: dict, param: str) -> None:
    server = new_server(chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")
    answer = httpx.post(server.url + path, json=body, timeout=30)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, "context_length_exceeded")
    assert "bytes" in error["message"]
    assert rejections(server, "too_long") == 1
    server.assert_idle()


def test_one_that_tokenising_tells_has_the_same_code(tiny_server: Served) -> None:
    before = rejections(tiny_server, "too_long")
    url = f"{tiny_server.url}/v1/completions"
    for prompt in ("word " * 300, [5] * 300):
        error = httpx.post(url, json={"prompt": prompt}, timeout=30).json()["error"]
        assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
        assert "tokens" in error["message"]
    assert rejections(tiny_server, "too_long") == before + 2


def test_tokenize_counts_whatever_it_is_given(tiny_server: Served) -> None:
    answer = httpx.post(f"{tiny_server.url}/tokenize", json={"prompt": LONG}, timeout=60).json()
    assert answer["count"] > answer["max_model_len"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"prompt": "a", "temperature": -1}, "bad_request"),
        ({"prompt": 5}, "bad_request"),
        ({"prompt": "a", "model": "other"}, "unknown_model"),
        ({"prompt": [[5]] * 4, "n": 64}, "too_many_sequences"),
    ],
)
def test_other_refusals_are_counted_by_reason(new_server: NewServer, body: dict, reason: str) -> None:
    server = new_server(ServerConfig(max_num_waiting=0))
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)
    assert answer.status_code in (400, 404)
    assert rejections(server, reason) == 1
