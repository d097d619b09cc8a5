"""Servers that misbehave on purpose: each request fails with its reason, and the run goes on and ends."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace

import pytest
from tests.loadgen.fake_server import Exchange, Request, Script, answering, completion, running, usage
from tests.loadgen.test_client import one

from ridgeline.loadgen.benchmark import execute_load, plan_load
from ridgeline.loadgen.console_report import report_lines
from ridgeline.loadgen.result import ReportSettings, load_result
from ridgeline.loadgen.server_account import ask_server
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.loadgen.stream import AnswerStream
from ridgeline.metrics.client_record import Outcome
from ridgeline.metrics.durations import itl_s
from ridgeline.workload.synthetic import RandomLengths

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
GOOD = [completion("a", usage=usage(1, 1)), completion("b", finish="length", usage=usage(1, 2))]


def raw(*pieces: bytes, gap_s: float = 0.0) -> Script:
    """Exactly these bytes, then the end of the connection."""

    async def script(exchange: Exchange) -> None:
        exchange.is_chunked = False
        for piece in pieces:
            await exchange.raw(piece)
            await asyncio.sleep(gap_s)
        exchange.writer.close()

    return script


def events(*documents: object) -> Script:
    """A stream of these, each as it is."""

    async def script(exchange: Exchange) -> None:
        await exchange.head()
        for document in documents:
            await exchange.event(document)
        await exchange.end()

    return script


def data(*documents: object) -> bytes:
    return b"".join(f"data: {json.dumps(document)}\n\n".encode() for document in documents)


async def endless_header(exchange: Exchange) -> None:
    await exchange.raw(b"HTTP/1.1 200 OK\r\nX-Long: ")
    for _ in range(64):
        await exchange.raw(b"x" * (1 << 16))


async def endless_interim(exchange: Exchange) -> None:
    for _ in range(100_000):
        await exchange.raw(b"HTTP/1.1 100 Continue\r\nX-Pad: " + b"x" * 1000 + b"\r\n\r\n")


MALFORMED = [
    ("nested", events("[" * 100_000), "is no chunk"),
    ("number", events({"choices": 7}), "no list of choices"),
    ("null", events(None), "is no chunk"),
    ("delta", events({"choices": [{"text": {"a": 1}, "finish_reason": None}, 3]}), "is no chunk"),
    ("usage_list", events({"choices": [], "usage": [1]}), "is no chunk"),
    ("usage_text", events({"choices": [], "usage": {"completion_tokens": "9"}}), "completion_tokens"),
    ("usage_huge", events(completion("a", usage=usage(1, 2**40))), "usage counts 1,099,511,627,776 tokens"),
    ("usage_beyond", events('{"usage": {"completion_tokens": 1' + "0" * 400 + "}}"), "is no chunk"),
    ("not_a_number", events('{"choices": [], "usage": {"completion_tokens": NaN}}'), "is no chunk"),
    ("surrogate", events('{"choices": [{"text": "\\ud800"}]}'), "is no chunk"),
    ("html", events("<html>"), "is no chunk"),
    ("gzip", raw(HEAD + b"Content-Encoding: gzip\r\n\r\n", b"\x1f\x8b\x08"), "content encoding gzip"),
    ("both_lengths", raw(HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"), "no HTTP"),
    ("negative_length", raw(HEAD + b"Content-Length: -1\r\n\r\n"), "no HTTP"),
    ("bad_status", raw(b"HTTP/1.1 999999999999 Boo\r\n\r\n"), "no HTTP"),
    ("http2", raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "no HTTP"),
    ("tls", raw(bytes([21, 3, 1, 0, 2, 2, 40])), "no HTTP"),
    ("upgrade", raw(b"HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"), "protocol"),
    ("endless_header", endless_header, "headers of more than 1,048,576 bytes"),
    ("endless_interim", endless_interim, "headers of more than 1,048,576 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "reason"), [m[1:] for m in MALFORMED], ids=[m[0] for m in MALFORMED])
def test_what_can_not_be_read_is_malformed(script: Script, reason: str) -> None:
    record = one(script)
    assert record.outcome is Outcome.MALFORMED_STREAM, record.error
    assert reason in str(record.error)
    assert not record.has_whole_stream


def test_an_interim_answer_is_passed_over() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    record = one(raw(hints, HEAD + b"\r\n" + data(*GOOD)))
    assert (record.outcome, record.text) == (Outcome.OK, "ab")


@pytest.mark.parametrize("num_choices", [0, 10_000])
def test_many_choices_and_none_are_read(num_choices: int) -> None:
    crowd = {"choices": [{"text": ""}] * num_choices}
    record = one(events(crowd, *GOOD, "[DONE]"))
    assert record.outcome is Outcome.OK
    assert record.num_output_tokens == 2


def test_usage_that_falls_counts_nothing_back() -> None:
    record = one(
        events(completion("a", usage=usage(1, 5)), completion("b", finish="stop", usage=usage(1, 2)))
    )
    assert [chunk.num_tokens for chunk in record.chunks] == [5]
    assert itl_s(record) == []


def test_a_total_beyond_belief_beside_no_chunk_is_only_a_number() -> None:
    record = one(events(*GOOD, {"choices": [], "usage": usage(1, 2**50)}, "[DONE]"))
    assert (record.outcome, record.num_output_tokens, len(itl_s(record))) == (Outcome.OK, 2**50, 1)


@pytest.mark.parametrize("piece", [b"HTTP/1.1 200 OK\r\nX-A: ", b": a comment\n\n", data(completion("a"))])
def test_what_never_ends_is_a_timeout(piece: bytes) -> None:
    """Slow headers, comments and tokens, one after the other for ever."""

    async def script(exchange: Exchange) -> None:
        if not piece.startswith(b"HTTP"):
            exchange.is_chunked = False
            await exchange.head()
        while True:
            await exchange.raw(piece)
            await asyncio.sleep(0.01)

    record = one(script, timeout_s=0.4)
    assert (record.outcome, record.error) == (Outcome.TIMEOUT, "no end within 0.4 s")


def test_what_would_steer_a_terminal_is_replaced() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.whole("500 Oops", {"error": {"message": "\x1b[2Jgone\u202e\x07"}})

    record = one(script)
    assert record.error == "HTTP 500: \ufffd[2Jgone\ufffd\ufffd"


def test_any_bytes_in_any_pieces_end_in_an_outcome() -> None:
    """Each cut of a good stream, and each of its bytes in turn replaced."""
    whole = data(*GOOD) + b"data: [DONE]\n\n"
    for place in range(len(whole)):
        for body in (whole[:place], whole[:place] + b"\xff" + whole[place + 1 :]):
            stream = AnswerStream(is_chat=False)
            stream.head(200, {"content-type": "text/event-stream"})
            for piece in (body[: place // 2], body[place // 2 :]):
                if stream.body(piece, 1.0):
                    break
            stream.end(1.0)
            assert stream.outcome is not None
            assert (stream.error is None) == (stream.outcome is Outcome.OK)


def test_a_run_against_all_of_them_ends_with_a_report() -> None:
    scripts = [script for name, script, _ in MALFORMED if not name.startswith("endless")]

    async def script(exchange: Exchange) -> None:
        index = exchange.request.index
        await (scripts[index // 2 % len(scripts)] if index % 2 else answering(2))(exchange)

    count = 2 * len(scripts)
    dataset = DatasetSettings(num_prompts=count, random=RandomLengths(input_len=4, output_len=2))
    with running(script) as server:
        target = TargetSettings(url=server.url, model="m", request_timeout_s=20)
        plan = plan_load(target, dataset, TrafficSettings(max_concurrency=4))
        document = load_result(plan, execute_load(plan), ReportSettings(save_detailed=True))
    assert document["failures"] == {"malformed_stream": len(scripts)}
    assert document["completed"] == len(scripts)
    json.dumps(document, allow_nan=False)
    assert report_lines(document)[0].startswith(f"FAILED: {len(scripts)} of {count}")


@pytest.mark.parametrize(
    "answer", ["x", [], {}, {"late_tokens": 3}, {"late_tokens": [1, {"token": 1, "cause": 7}]}]
)
def test_an_account_of_anything_is_no_crash(answer: object) -> None:
    dataset = DatasetSettings(num_prompts=3, random=RandomLengths(input_len=4, output_len=3))
    with running(answering(3)) as server:
        server.prefixes["/debug/requests/"] = lambda _: answer
        plan = plan_load(TargetSettings(url=server.url, model="m"), dataset, TrafficSettings())
        run = execute_load(plan)
        account = ask_server(plan, run, {"ttft": 1e-9}, all_requests=True)
    document = load_result(plan, run, ReportSettings(save_detailed=True), server=account)
    assert report_lines(document)


def test_a_server_that_falls_silent_after_the_run_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.loadgen.server_account.FACT_TIMEOUT_S", 0.2)
    monkeypatch.setattr("ridgeline.loadgen.server_facts.FACT_TIMEOUT_S", 0.2)
    dataset = DatasetSettings(num_prompts=20, random=RandomLengths(input_len=4, output_len=3))
    asked: list[str] = []

    def answer(request: Request) -> object:
        asked.append(request.path)
        if len(asked) > 1:
            threading.Event().wait(1.0)
        return {}

    with running(answering(3)) as server:
        server.prefixes["/debug/requests/"] = answer
        plan = plan_load(TargetSettings(url=server.url, model="m"), dataset, TrafficSettings())
        account = ask_server(plan, execute_load(plan), {}, all_requests=True)
    assert len(asked) == 2
    assert account is not None
    assert len(account.times) == 1


def test_an_interrupted_run_is_not_asked_about_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.loadgen.server_account.PATIENCE_S", 0.1)
    dataset = DatasetSettings(num_prompts=20, random=RandomLengths(input_len=4, output_len=3))
    asked: list[str] = []

    def answer(request: Request) -> object:
        asked.append(request.path)
        threading.Event().wait(0.15)
        return {}

    with running(answering(3)) as server:
        server.prefixes["/debug/requests/"] = answer
        plan = plan_load(TargetSettings(url=server.url, model="m"), dataset, TrafficSettings())
        run = execute_load(plan)
        ask_server(plan, replace(run, was_interrupted=True), {}, all_requests=True)
    assert len(asked) == 1
