"""While no place is free no generating request is parsed; the rest of the server answers on."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.server.conftest import Served
from tests.server.test_completions import post

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses")


@pytest.fixture
def full_server(tiny_server: Served) -> Iterator[Served]:
    """Every place of its queue is held."""
    admission = tiny_server.state.admission
    num_places = 32 + tiny_server.state.config.max_num_waiting
    admission.enter(num_places, tiny_server.llm.clock.now())
    yield tiny_server
    admission.leave(num_places, tiny_server.llm.clock.now())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b'{"prompt": "a", "input": "a"}', b"{", b"", b'{"model": "nope"}'])
def test_a_full_queue_refuses_before_it_parses(full_server: Served, path: str, body: bytes) -> None:
    answer = httpx.post(full_server.url + path, content=body)
    assert answer.status_code == 429
    error = answer.json()["error"]
    waiting = full_server.state.config.max_num_waiting
    assert error["message"] == f"the waiting queue is full ({waiting} of {waiting} sequences)"
    assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["x-request-id"]


def test_each_refusal_counts_once(full_server: Served) -> None:
    def num_refused() -> float:
        lines = httpx.get(f"{full_server.url}/metrics").text.splitlines()
        (line,) = [each for each in lines if "rejections_total{" in each and "queue_full" in each]
        return float(line.split()[-1])

    before = num_refused()
    for path in PATHS:
        assert httpx.post(full_server.url + path, content=b"{}").status_code == 429
    assert num_refused() - before == len(PATHS)


def test_what_needs_no_place_is_answered(full_server: Served) -> None:
    assert httpx.get(f"{full_server.url}/v1/models").status_code == 200
    assert post(full_server, "/tokenize", prompt="Hello").status_code == 200
    assert httpx.get(f"{full_server.url}/v1/completions").status_code == 405
    assert httpx.post(f"{full_server.url}/v1/nothing").status_code == 404


def test_with_a_place_free_the_request_is_judged_by_itself(full_server: Served) -> None:
    """One place: a mistake is told, one sequence runs, two of one request do not fit."""
    admission = full_server.state.admission
    admission.leave(1, full_server.llm.clock.now())
    try:
        assert httpx.post(f"{full_server.url}/v1/completions", content=b"{").status_code == 400
        assert post(full_server, "/v1/completions", prompt="Hello", max_tokens=1).status_code == 200
        assert post(full_server, "/v1/completions", prompt="Hello", max_tokens=1, n=2).status_code == 429
    finally:
        admission.enter(1, full_server.llm.clock.now())
