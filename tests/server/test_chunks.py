"""What a client times: a stream's chunks, each sent before the next step, and what a reader too slow gets."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.server.conftest import NewServer, Served
from tests.server.test_completions import post
from tests.server.test_disconnects import wait_until_idle

from ridgeline.core.step import ModelRunnerOutput, SchedulerOutput
from ridgeline.engine.delta_stream import MAX_PENDING_DELTAS, DeltaStream
from ridgeline.tokenizer.detokenizer import Detokenizer
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer

HANG_S = 60.0
NUM_TOKENS = 24
MESSAGES = [{"role": "user", "content": "Hi"}]
TEXT = "é🦙 日本 🇫🇷 ﷽"
PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": [5, 6, 7]},
    "/v1/chat/completions": {"messages": MESSAGES},
}


class GatedExecutor:
    """Computes a step for each permission."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._permissions = threading.Semaphore(0)

    def allow(self, num_steps: int) -> None:
        self._permissions.release(num_steps)

    def execute(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        assert self._permissions.acquire(timeout=HANG_S)
        return self._inner.execute(scheduler_output)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._inner.close()


class TurningExecutor:
    """Computes a step once the event loop has turned: whoever reads has what the last step gave."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop

    def execute(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        asyncio.run_coroutine_threadsafe(self._turn(), self._loop).result(HANG_S)
        return self._inner.execute(scheduler_output)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._inner.close()

    async def _turn(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


class EventReader:
    """A stream over a socket of its own, read event by event."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._response = connection.getresponse()
        assert self._response.status == 200

    def next(self) -> Any:
        """The JSON of the next event, or the end mark's text."""
        line = self._response.readline().decode()
        assert line.startswith("data: "), line
        assert self._response.readline() == b"\n"
        data = line[6:].rstrip("\n")
        return json.loads(data) if data.startswith("{") else data

    def all(self) -> list[Any]:
        """What is left, without the end mark."""
        events = []
        while (event := self.next()) != "[DONE]":
            events.append(event)
        return events


@contextmanager
def reading(server: Served, path: str, body: dict[str, Any]) -> Iterator[EventReader]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG_S)
    connection.request("POST", path, json.dumps({**body, "stream": True}))
    try:
        yield EventReader(connection)
    finally:
        connection.close()


def released(tokenizer: Tokenizer, token_ids: list[int]) -> list[tuple[int, list[int]]]:
    """Steps and tokens of each chunk: a token leaves once its text is whole, what is left at the end."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=True, continues_text=True)
    chunks, held, num_chars, num_steps = [], list[tuple[int, int]](), 0, 0
    for place, token_id in enumerate(token_ids, start=1):
        num_chars += len(detokenizer.push(token_id))
        num_steps += 1
        held.append((num_chars + int(detokenizer.has_incomplete_character), token_id))
        free = [token for end, token in held if end <= num_chars or place == len(token_ids)]
        if free:
            chunks.append((num_steps, free))
            held, num_steps = held[len(free) :], 0
    return chunks


def letters(tokenizer: Tokenizer) -> dict[str, Any]:
    """A body that lets only tokens of one letter each through."""
    ids = [tokenizer.encode(letter)[0] for letter in "abcdefgh"]
    return {"logit_bias": {str(token_id): 100 for token_id in ids}}


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize("kind", ["letters", "any bytes", "dictated"])
def test_each_token_is_a_chunk_of_its_own_sent_before_the_next_step(
    new_server: NewServer, path: str, kind: str
) -> None:
    server = new_server()
    tokenizer, engine = server.llm.tokenizer, server.llm.parts.engine
    logprobs: dict[str, Any] = {"logprobs": 0} if path == "/v1/completions" else {"logprobs": True}
    fields: dict[str, Any] = {
        "letters": {**letters(tokenizer), "ignore_eos": True, "max_tokens": NUM_TOKENS},
        "any bytes": {"ignore_eos": True, "max_tokens": NUM_TOKENS},
        # With logprobs, text that a grammar dictates comes token by token too.
        "dictated": {"structured_outputs": {"choice": [TEXT]}, "max_tokens": 100, **logprobs},
    }[kind]
    body = {**PROMPTS[path], **fields, "temperature": 1.0, "seed": 3, "return_token_ids": True}
    whole = post(server, path, **body).json()
    token_ids = whole["choices"][0]["token_ids"]
    expected = released(tokenizer, token_ids)
    engine._executor = gate = GatedExecutor(engine._executor)
    with reading(server, path, {**body, "stream_options": {"include_usage": True}}) as stream:
        gate.allow(expected[0][0])
        if path == "/v1/chat/completions":
            assert stream.next()["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        choices = []
        for index, (_, tokens) in enumerate(expected):
            (choice,) = stream.next()["choices"]
            assert choice["token_ids"] == tokens
            choices.append(choice)
            if index + 1 < len(expected):
                gate.allow(expected[index + 1][0])
        usage, end = stream.next(), stream.next()
    texts = [choice["text"] if "text" in choice else choice["delta"]["content"] for choice in choices]
    message = whole["choices"][0]
    assert "".join(texts) == (message["text"] if "text" in message else message["message"]["content"])
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == message["finish_reason"]
    assert (usage["choices"], usage["usage"]["completion_tokens"], end) == ([], len(token_ids), "[DONE]")
    prompt = {name: PROMPTS[path][name] for name in PROMPTS[path] if name == "messages"}
    count = post(server, "/tokenize", **prompt).json()["count"] if prompt else 3
    assert usage["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"] == count
    if kind == "letters":
        assert [len(text) for text in texts] == [1] * NUM_TOKENS
    if kind == "dictated":
        assert "".join(texts) == TEXT
        assert len(token_ids) == len(tokenizer.encode(TEXT)) + 1  # the end token, a chunk without text
        assert not any("\ufffd" in text for text in texts)
    gate.allow(1000)
    server.assert_idle()


def test_dictated_tokens_of_one_step_are_one_chunk(new_server: NewServer) -> None:
    server = new_server()
    body = {"prompt": "hi", "structured_outputs": {"choice": ["one text"]}, "return_token_ids": True}
    with reading(server, "/v1/completions", {**body, "max_tokens": 100}) as stream:
        (chunk,) = stream.all()
    assert chunk["choices"][0]["text"] == "one text"
    assert len(chunk["choices"][0]["token_ids"]) == len(server.llm.tokenizer.encode("one text")) + 1


SLOW: dict[str, Any] = {
    "prompt": "Once",
    "n": 4,
    "max_tokens": 240,
    "ignore_eos": True,
    "temperature": 1.0,
    "seed": 11,
    "logprobs": 20,
    "return_token_ids": True,
}


def joined(events: list[Any]) -> dict[int, tuple[str, list[int], list[Any]]]:
    """Text, tokens and logprobs of each choice."""
    whole: dict[int, tuple[str, list[int], list[Any]]] = {}
    for event in events:
        for choice in event["choices"]:
            text, tokens, logprobs = whole.get(choice["index"], ("", [], []))
            whole[choice["index"]] = (
                text + choice["text"],
                tokens + choice["token_ids"],
                logprobs + choice["logprobs"]["token_logprobs"],
            )
    return whole


def test_a_reader_that_pauses_gets_everything_and_holds_up_nobody(
    new_server: NewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = new_server(send_buffer_bytes=4096)
    engine = server.llm.parts.engine
    engine._executor = TurningExecutor(engine._executor, server.loop)
    expected = joined([post(server, "/v1/completions", **SLOW).json()])
    quick_body = {"prompt": [5, 6], "max_tokens": 100, "temperature": 0, **letters(server.llm.tokenizer)}
    alone = post(server, "/v1/completions", **quick_body).json()["choices"][0]["text"]
    streams: list[DeltaStream] = []
    opened = server.llm.engine.open
    monkeypatch.setattr(
        server.llm.engine, "open", lambda submissions: streams.append(opened(submissions)) or streams[-1]
    )
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG_S)
    connection.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = json.dumps({**SLOW, "stream": True, "stream_options": {"include_usage": True}})
    connection.request("POST", "/v1/completions", body, {"x-request-id": "slow"})
    slow = EventReader(connection)
    first = slow.next()
    # Others read while it does not, and the engine ends its request without it.
    for _ in range(3):
        with reading(server, "/v1/completions", quick_body) as quick:
            chunks = [event["choices"][0] for event in quick.all()]
        assert "".join(chunk["text"] for chunk in chunks) == alone
        assert len(chunks) == 100
    for _ in range(3000):
        if not server.stats().num_requests_running:
            break
        time.sleep(0.01)
    assert server.stats().num_requests_running == 0
    assert len(streams[0]._pending) == MAX_PENDING_DELTAS
    *events, usage = [first, *slow.all()]
    connection.close()
    assert joined(events) == expected
    assert usage["usage"]["completion_tokens"] == 4 * 240
    sizes = [len(event["choices"][0]["token_ids"]) for event in events]
    assert max(sizes) > 1
    told = httpx.get(f"{server.url}/debug/requests/slow?choice=0").json()
    merged = [each for each in told["happenings"] if each["what"] == "deltas coalesced"]
    assert merged
    of_choice = [len(e["choices"][0]["token_ids"]) for e in events if e["choices"][0]["index"] == 0]
    assert max(each["num_tokens"] for each in merged) == max(of_choice)
    assert "client_backpressure" in {late["cause"] for late in told["late_tokens"]}
    wait_until_idle(server)
