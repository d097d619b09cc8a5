"""Clients that go away: nothing of theirs stays."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import pytest
from tests.server.conftest import NewServer, Served
from tests.server.test_completions import post

BODY = {"prompt": [5, 6, 7], "max_tokens": 240, "ignore_eos": True}


def raw_post(server: Served, body: dict[str, object]) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def wait_until_idle(server: Served) -> None:
    num_idle_polls = 0
    for _ in range(1000):
        # Several in a row: what was sent last may not have been read yet.
        num_idle_polls = 0 if server.state.admission.num_sequences else num_idle_polls + 1
        if num_idle_polls == 30:
            break
        time.sleep(0.01)
    server.assert_idle()


def test_sockets_closed_amid_their_streams(tiny_server: Served) -> None:
    connections = [raw_post(tiny_server, {**BODY, "stream": True}) for _ in range(32)]
    for connection in connections:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    for connection in connections:
        connection.close()
    wait_until_idle(tiny_server)
    assert post(tiny_server, "/v1/completions", **BODY).status_code == 200


def test_sockets_closed_before_their_answers(new_server: NewServer) -> None:
    server = new_server(max_num_seqs=1)
    connections = [raw_post(server, {**BODY, "n": 4}) for _ in range(8)]
    for connection in connections:
        connection.close()
    wait_until_idle(server)


def test_a_client_that_does_not_read_holds_up_nobody(tiny_server: Served) -> None:
    silent = raw_post(tiny_server, {**BODY, "n": 16, "stream": True, "logprobs": 20})
    assert post(tiny_server, "/v1/completions", **BODY).status_code == 200
    silent.close()
    wait_until_idle(tiny_server)


@pytest.mark.parametrize("timeout", ["0.000001", "0.01"])
def test_a_deadline_is_the_finish_reason(tiny_server: Served, timeout: str) -> None:
    answer = tiny_server.client.completions.create(
        model="tiny-llama",
        prompt=[5, 6],
        max_tokens=240,
        n=8,
        extra_headers={"x-request-timeout": timeout},
        extra_body={"ignore_eos": True},
    )
    assert {choice.finish_reason for choice in answer.choices} <= {"timeout", "length"}
    if timeout == "0.000001":
        assert {choice.finish_reason for choice in answer.choices} == {"timeout"}
    tiny_server.assert_idle()


def test_an_idle_engine_sleeps(tiny_server: Served) -> None:
    """Its thread waits for a command, and takes no step."""
    first = tiny_server.stats()
    num_steps = tiny_server.llm.parts.engine.scheduler._next_step_id
    asyncio.run(asyncio.sleep(0.2))
    assert tiny_server.llm.parts.engine.scheduler._next_step_id == num_steps
    assert tiny_server.stats() == first
