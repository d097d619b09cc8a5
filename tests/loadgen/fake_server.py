"""A scripted server on a real socket: it sends exactly what a script says, when the script says it.

Raw asyncio, so that a script can also break HTTP and the connection itself.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Request:
    """What the server read of one request."""

    index: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict:
        return json.loads(self.body)


@dataclass
class Exchange:
    """The server's side of one exchange."""

    request: Request
    writer: asyncio.StreamWriter
    is_chunked: bool = True

    async def head(
        self, status: str = "200 OK", content_type: str | None = "text/event-stream", **more: str
    ) -> None:
        lines = [f"HTTP/1.1 {status}"]
        if content_type is not None:
            lines.append(f"Content-Type: {content_type}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
        if self.is_chunked:
            lines.append("Transfer-Encoding: chunked")
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def piece(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data) if self.is_chunked else data)

    async def event(self, document: object) -> None:
        text = document if isinstance(document, str) else json.dumps(document)
        await self.piece(f"data: {text}\n\n".encode())

    async def end(self) -> None:
        if self.is_chunked:
            await self.raw(b"0\r\n\r\n")

    async def whole(self, status: str, document: object, **more: str) -> None:
        body = (document if isinstance(document, str) else json.dumps(document)).encode()
        self.is_chunked = False
        await self.head(status, "application/json", Content_Length=str(len(body)), **more)
        await self.raw(body)

    def reset(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Exchange], Awaitable[None]]


@dataclass
class FakeServer:
    """Runs `script` for POSTs to OpenAI endpoints; other paths answer from `routes`, `prefixes`, or 404."""

    script: Script
    routes: dict[str, Callable[[Request], object]] = field(default_factory=dict)
    prefixes: dict[str, Callable[[Request], object]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    url: str = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await self._read(reader)) is not None:
                exchange = Exchange(request, writer)
                if request.path in ("/v1/completions", "/v1/chat/completions"):
                    await self.script(exchange)
                    if not exchange.is_chunked and request.method == "POST" and not writer.is_closing():
                        break
                elif request.path in self.routes:
                    await exchange.whole("200 OK", self.routes[request.path](request))
                elif (route := self._by_prefix(request.path)) is not None:
                    await exchange.whole("200 OK", route(request))
                else:
                    await exchange.whole("404 Not Found", {"error": {"message": "no such path"}})
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, or the test is over
        finally:
            writer.close()

    def _by_prefix(self, path: str) -> Callable[[Request], object] | None:
        return next((route for prefix, route in self.prefixes.items() if path.startswith(prefix)), None)

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        line = await reader.readline()
        if not line:
            return None
        method, path, _ = line.decode().split(" ", 2)
        headers = {}
        while header := (await reader.readline()).decode().strip():
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        num_posts = sum(
            request.method == "POST" and "completions" in request.path for request in self.requests
        )
        request = Request(num_posts, method, path, headers, body)
        self.requests.append(request)
        return request

    @property
    def generations(self) -> list[Request]:
        return [request for request in self.requests if "completions" in request.path]


@contextmanager
def running(script: Script, **routes: Callable[[Request], object]) -> Iterator[FakeServer]:
    """The server in a thread of its own, so that a blocked client can't hold it up."""
    paths = {"/" + name.replace("__", "/"): route for name, route in routes.items()}
    server = FakeServer(script, paths)
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(asyncio.start_server(server.handle, "127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(_shut(listener), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _shut(listener: asyncio.Server) -> None:
    listener.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def completion(text: str, *, finish: str | None = None, usage: dict | None = None) -> dict:
    """One chunk of a streamed completion."""
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": usage}


def chat(delta: dict, *, finish: str | None = None, usage: dict | None = None) -> dict:
    """One chunk of a streamed chat."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage}


def usage(prompt: int, completion: int, cached: int | None = None) -> dict:
    """A usage object."""
    counts: dict = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return counts


def answering(num_tokens: int = 3, *, first_s: float = 0.0, gap_s: float = 0.0) -> Script:
    """A good server: `num_tokens` tokens, one a chunk, with per-chunk usage."""

    async def script(exchange: Exchange) -> None:
        prompt = exchange.request.json.get("prompt", "")
        num_prompt = len(prompt) if isinstance(prompt, list) else len(prompt.split())
        await asyncio.sleep(first_s)
        await exchange.head()
        for index in range(1, num_tokens + 1):
            if index > 1 and gap_s:
                await asyncio.sleep(gap_s)
            finish = "length" if index == num_tokens else None
            await exchange.event(completion(f" t{index}", finish=finish, usage=usage(num_prompt, index)))
        await exchange.event({"choices": [], "usage": usage(num_prompt, num_tokens)})
        await exchange.event("[DONE]")
        await exchange.end()

    return script
