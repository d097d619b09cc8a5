"""Every way in which a server can answer, over a real socket: a record with a reason, never a crash."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.loadgen.fake_server import Exchange, Script, answering, chat, completion, running, usage

from ridgeline.loadgen.client import Endpoint, LoadClient, PreparedRequest
from ridgeline.loadgen.http_client import PATIENCE_S, HttpClient
from ridgeline.metrics.client_record import ClientRecord, Outcome

HANG_GUARD_S = 20


def send(
    script: Script, *, is_chat: bool = False, timeout_s: float = 10.0, count: int = 1
) -> list[ClientRecord]:
    async def run(url: str) -> list[ClientRecord]:
        http = HttpClient(url)
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        endpoint = Endpoint(path=path, is_chat=is_chat, headers={}, timeout_s=timeout_s)
        client = LoadClient(http, endpoint)
        now = asyncio.get_running_loop().time
        body = json.dumps({"prompt": "a b"}).encode()
        try:
            async with asyncio.timeout(HANG_GUARD_S):
                return [
                    await client.send(PreparedRequest(request_id=f"r{index}", body=body), now())
                    for index in range(count)
                ]
        finally:
            await http.close()

    with running(script) as server:
        return asyncio.run(run(server.url))


def one(script: Script, **settings: object) -> ClientRecord:
    [record] = send(script, **settings)  # type: ignore[arg-type]
    return record


def test_a_good_stream() -> None:
    record = one(answering(3, first_s=0.03, gap_s=0.02))
    assert (record.outcome, record.error, record.finish_reason) == (Outcome.OK, None, "length")
    assert [chunk.num_tokens for chunk in record.chunks] == [1, 1, 1]
    assert record.has_chunk_tokens
    assert (record.num_prompt_tokens, record.num_output_tokens) == (2, 3)
    assert record.text == " t1 t2 t3"
    assert record.sent_at_s is not None
    assert record.chunks[0].at_s - record.sent_at_s >= 0.03
    assert record.chunks[-1].at_s - record.sent_at_s >= 0.07
    assert record.closed_at_s is not None
    assert record.closed_at_s >= record.chunks[-1].at_s


def test_a_connection_is_used_again() -> None:
    ports = set()

    async def script(exchange: Exchange) -> None:
        ports.add(exchange.writer.get_extra_info("peername")[1])
        await answering(2)(exchange)

    assert [r.outcome for r in send(script, count=3)] == [Outcome.OK] * 3
    assert len(ports) == 1


def test_the_patience_of_one_exchange_ends_no_other() -> None:
    """The next answer on a kept connection takes longer than the wait for the last one's end."""
    records = send(answering(2, first_s=3 * PATIENCE_S), count=3)
    assert [(r.outcome, len(r.chunks)) for r in records] == [(Outcome.OK, 2)] * 3


def test_a_server_that_keeps_the_stream_open_after_done() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.event(completion("a", finish="stop"))
        await exchange.event("[DONE]")
        await asyncio.sleep(60)

    records = send(script, count=2)
    assert [r.outcome for r in records] == [Outcome.OK] * 2
    assert all(r.closed_at_s == r.last_event_at_s for r in records)


def coalesced(*, per_chunk: bool) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.head()
        total = 0
        for count in (1, 3, 3, 5):
            total += count
            finish = "length" if total == 12 else None
            counts = usage(2, total) if per_chunk else None
            await exchange.event(completion("x" * count, finish=finish, usage=counts))
        await exchange.event({"choices": [], "usage": usage(2, 12, cached=1)})
        await exchange.event("[DONE]")
        await exchange.end()

    return script


def test_per_chunk_usage_says_how_many_tokens_a_chunk_holds() -> None:
    record = one(coalesced(per_chunk=True))
    assert [chunk.num_tokens for chunk in record.chunks] == [1, 3, 3, 5]
    assert (record.has_chunk_tokens, record.num_output_tokens, record.num_cached_tokens) == (True, 12, 1)


def test_without_it_every_chunk_is_one() -> None:
    record = one(coalesced(per_chunk=False))
    assert [chunk.num_tokens for chunk in record.chunks] == [1, 1, 1, 1]
    assert (record.has_chunk_tokens, record.num_output_tokens) == (False, 12)


def test_a_chat_whose_role_chunk_is_no_token() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.event(chat({"role": "assistant", "content": ""}))
        await exchange.event(chat({"reasoning_content": "hm"}))
        await exchange.event(chat({"content": "é"}))
        await exchange.event(chat({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}))
        await exchange.event(chat({"content": ""}))
        await exchange.event(chat({}, finish="tool_calls"))
        await exchange.event({"choices": [], "usage": usage(9, 4)})
        await exchange.event("[DONE]")
        await exchange.end()

    record = one(script, is_chat=True)
    assert record.outcome is Outcome.OK
    assert len(record.chunks) == 4
    opening_at_s, finish_at_s = record.empty_at_s
    assert opening_at_s <= record.chunks[0].at_s <= record.chunks[-1].at_s <= finish_at_s
    assert record.text.startswith("hmé")


def test_an_end_token_without_text_is_counted_by_usage() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.event(completion("a"))
        await exchange.event(completion("", finish="stop"))
        await exchange.event({"choices": [], "usage": usage(2, 2)})
        await exchange.event("[DONE]")
        await exchange.end()

    assert len(one(script).chunks) == 2


def test_a_stream_delimited_by_close_without_done() -> None:
    async def script(exchange: Exchange) -> None:
        exchange.is_chunked = False
        await exchange.head(Connection="close")
        await exchange.raw(b"data:" + json.dumps(completion("é🦙")).encode() + b"\r\n\r\n")
        await exchange.raw(b"data: " + json.dumps(completion("b", finish="stop")).encode() + b"\n")

    record = one(script)
    assert (record.outcome, record.text, len(record.chunks)) == (Outcome.OK, "é🦙b", 2)


def test_pieces_cut_inside_characters() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.head()
        text = json.dumps(completion("é🦙日本", finish="stop"), ensure_ascii=False)
        for byte in f"data: {text}\n\ndata: [DONE]\n\n".encode():
            await exchange.piece(bytes([byte]))
        await exchange.end()

    assert one(script).text == "é🦙日本"


async def _429(exchange: Exchange) -> None:
    await exchange.whole("429 Too Many Requests", {"error": {"message": "queue full"}})


async def _500(exchange: Exchange) -> None:
    await exchange.whole("500 Internal Server Error", "<html>oh no</html>")


async def _redirect(exchange: Exchange) -> None:
    await exchange.whole("307 Temporary Redirect", "", Location="http://elsewhere.example/")


async def _wrong_type(exchange: Exchange) -> None:
    await exchange.whole("200 OK", {"choices": [{"text": "whole"}]})


async def _no_type(exchange: Exchange) -> None:
    await exchange.head(content_type=None)
    await exchange.event(completion("a", finish="stop"))
    await exchange.end()


async def _empty(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.end()


async def _only_done(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event("[DONE]")
    await exchange.end()


async def _no_finish(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event(completion("a"))
    await exchange.event("[DONE]")
    await exchange.end()


async def _cut(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event(completion("a"))
    exchange.writer.close()


async def _cut_in_event(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event(completion("a"))
    await exchange.piece(b'data: {"choices": [{"te')
    exchange.writer.close()


async def _cut_after_finish(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event(completion("a", finish="stop"))
    exchange.writer.close()


async def _reset_before(exchange: Exchange) -> None:
    exchange.reset()


async def _reset_amid(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event(completion("a"))
    await asyncio.sleep(0.02)
    exchange.reset()


async def _close_before(exchange: Exchange) -> None:
    exchange.writer.close()


async def _bad_json(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event('{"choices": [')
    await exchange.end()


async def _bad_utf8(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.piece(b'data: {"choices": [{"text": "\xff\xfe"}]}\n\n')
    await exchange.end()


async def _no_choices(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event({"object": "thing"})
    await exchange.end()


async def _list(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event([1, 2])
    await exchange.end()


async def _bad_usage(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event({**completion("a"), "usage": {"completion_tokens": "three"}})
    await exchange.end()


async def _choice_is_text(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event({"choices": ["a"]})
    await exchange.end()


async def _error_inside(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event(completion("a"))
    await exchange.event({"error": {"message": "out of memory", "code": 500}})
    await exchange.end()


async def _overload_inside(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event({"error": {"message": "later", "code": 503}})
    await exchange.end()


async def _abort_finish(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event(completion("a", finish="abort"))
    await exchange.event("[DONE]")
    await exchange.end()


async def _not_http(exchange: Exchange) -> None:
    await exchange.raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    exchange.writer.close()


async def _bad_chunk_length(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.raw(b"zz\r\nnonsense\r\n")


async def _endless_line(exchange: Exchange) -> None:
    await exchange.head()
    for _ in range(300):
        await exchange.piece(b"data: " + b"x" * (1 << 16))


FAILURES = [
    (_429, Outcome.REJECTED, "HTTP 429: queue full"),
    (_500, Outcome.HTTP_ERROR, "HTTP 500: <html>oh no</html>"),
    (_redirect, Outcome.HTTP_ERROR, "HTTP 307 to http://elsewhere.example/"),
    (_wrong_type, Outcome.MALFORMED_STREAM, "content type application/json"),
    (_no_type, Outcome.MALFORMED_STREAM, "content type absent"),
    (_empty, Outcome.TRUNCATED, "an empty stream"),
    (_only_done, Outcome.TRUNCATED, "no finish reason"),
    (_no_finish, Outcome.TRUNCATED, "no finish reason"),
    (_cut, Outcome.TRUNCATED, "closed the connection after 1 chunks"),
    (_cut_in_event, Outcome.TRUNCATED, "closed the connection after 1 chunks"),
    (_cut_after_finish, Outcome.TRUNCATED, "closed the connection after 1 chunks"),
    (_reset_before, Outcome.CONNECTION, "connection"),
    (_reset_amid, Outcome.TRUNCATED, "after 1 chunks"),
    (_close_before, Outcome.CONNECTION, "closed the connection"),
    (_bad_json, Outcome.MALFORMED_STREAM, "is no chunk of an answer"),
    (_bad_utf8, Outcome.MALFORMED_STREAM, "is no chunk of an answer"),
    (_no_choices, Outcome.MALFORMED_STREAM, "no list of choices"),
    (_list, Outcome.MALFORMED_STREAM, "is no chunk of an answer"),
    (_bad_usage, Outcome.MALFORMED_STREAM, "completion_tokens"),
    (_choice_is_text, Outcome.MALFORMED_STREAM, "is no chunk of an answer"),
    (_error_inside, Outcome.HTTP_ERROR, "out of memory"),
    (_overload_inside, Outcome.REJECTED, "later"),
    (_abort_finish, Outcome.HTTP_ERROR, "finish reason abort"),
    (_not_http, Outcome.MALFORMED_STREAM, "no HTTP"),
    (_bad_chunk_length, Outcome.MALFORMED_STREAM, "no HTTP"),
    (_endless_line, Outcome.MALFORMED_STREAM, "more than 16,777,216 bytes"),
]


@pytest.mark.parametrize(("script", "outcome", "reason"), FAILURES, ids=[f[0].__name__ for f in FAILURES])
def test_a_failure_has_its_kind_and_a_reason(script: Script, outcome: Outcome, reason: str) -> None:
    record = one(script)
    assert record.outcome is outcome, record.error
    assert record.error is not None
    assert reason in record.error
    assert record.closed_at_s is not None


@pytest.mark.parametrize("after", ["nothing", "head", "chunk"])
def test_a_server_that_falls_silent_is_a_timeout(after: str) -> None:
    async def script(exchange: Exchange) -> None:
        if after != "nothing":
            await exchange.head()
        if after == "chunk":
            await exchange.event(completion("a"))
        await asyncio.sleep(60)

    record = one(script, timeout_s=0.3)
    assert (record.outcome, record.error) == (Outcome.TIMEOUT, "no end within 0.3 s")
    assert len(record.chunks) == (after == "chunk")


def test_nobody_listens() -> None:
    async def run() -> ClientRecord:
        endpoint = Endpoint(path="/v1/completions", is_chat=False, headers={}, timeout_s=5)
        client = LoadClient(HttpClient("http://127.0.0.1:9"), endpoint)
        return await client.send(PreparedRequest(request_id="r", body=b"{}"), 0.0)

    record = asyncio.run(run())
    assert record.outcome is Outcome.CONNECTION
    assert "can't connect" in str(record.error)


def test_after_a_failure_the_next_request_is_served() -> None:
    async def script(exchange: Exchange) -> None:
        await (_cut if exchange.request.index % 2 == 0 else answering(2))(exchange)

    outcomes = [record.outcome for record in send(script, count=4)]
    assert outcomes == [Outcome.TRUNCATED, Outcome.OK] * 2
