"""HTTP/1.1 towards one server: every piece of a body is stamped in the very call that reads the socket.

A general client hands pieces over through queues and tasks, so that its instants include the event loop's
backlog. Here the parser and the sink run inside `data_received`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

import httptools

from ridgeline.errors import ConfigError

REUSE_WITHIN_S = 1.0
"""An idle connection is used again only within this time: servers close theirs after two seconds or more."""

PATIENCE_S = 0.05
"""How long an answer of which nothing more is wanted may take to end in order."""

MAX_HEAD_BYTES = 1 << 20
"""Status line and headers, interim answers included, are no longer than this."""


class Sink(Protocol):
    """What a response flows into; instants on the loop's clock."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Status and headers, names in lower case."""

    def body(self, piece: bytes, at_s: float) -> bool:
        """A piece of the body; True when nothing more is wanted."""


class ConnectionFailedError(Exception):
    """No connection, or it ended before its answer did; `has_body` tells that some of the body came."""

    def __init__(self, reason: str, *, has_body: bool = False) -> None:
        self.has_body = has_body
        super().__init__(reason)


class NotHttpError(Exception):
    """The answer is no HTTP."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Method, path below the client's URL, headers, body."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class HttpClient:
    """Connections to the server at `url`, as many as there are requests at one time.

    Raises:
        ConfigError: `url` is not http(s)://host[:port][/path].
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError("url", url, f"is no URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("url", url, "must be http://HOST:PORT or https://HOST:PORT")
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._netloc = parts.netloc.rpartition("@")[2]
        self._idle: list[_Connection] = []

    async def send(self, request: HttpRequest, sink: Sink) -> None:
        """Send and let the answer flow into `sink`, until it ends or the sink wants no more.

        Raises:
            ConnectionFailedError: no connection, or it broke before the answer's end.
            NotHttpError: what came is no HTTP.
        """
        connection = self._take_idle() or await self._connect()
        try:
            await connection.exchange(self._encode(request), sink)
        finally:
            self._give_back(connection)

    async def close(self) -> None:
        """Close what is idle."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # a transport closes in the loop's next turn

    def _encode(self, request: HttpRequest) -> bytes:
        lines = [
            f"{request.method} {self._prefix}{request.path} HTTP/1.1",
            f"host: {self._netloc}",
            *(f"{name}: {value}" for name, value in request.headers.items()),
            f"content-length: {len(request.body)}",
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + request.body

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(loop), self._host, self._port, ssl=self._tls
            )
        except (OSError, UnicodeError) as error:  # a host name that no name can be is the latter
            reason = getattr(error, "strerror", None) or error
            raise ConnectionFailedError(f"can't connect: {reason}") from None
        return connection

    def _take_idle(self) -> _Connection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle and now - connection.idle_since_s <= REUSE_WITHIN_S:
                return connection
            connection.close()
        return None

    def _give_back(self, connection: _Connection) -> None:
        if connection.is_idle:
            self._idle.append(connection)
        else:
            connection.close()


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._is_lost = False
        self._ended: asyncio.Future[None] | None = None
        self.idle_since_s = 0.0

    @property
    def is_idle(self) -> bool:
        """The last exchange ended in order and the server keeps the connection."""
        return not self._is_lost and self._ended is None

    async def exchange(self, request: bytes, sink: Sink) -> None:
        """As `HttpClient.send`; afterwards either idle or to be closed."""
        assert self._transport is not None
        self._sink = sink
        self._headers: dict[str, str] = {}
        self._has_head = self._has_body = self._is_enough = self._is_whole = self._is_kept = False
        self._at_s = 0.0
        self._is_interim, self._num_head_bytes = False, 0
        self._parser = httptools.HttpResponseParser(self)
        self._ended = self._loop.create_future()
        if self._is_lost:
            raise ConnectionFailedError("the server closed the connection")
        self._transport.write(request)
        await self._ended
        if self._is_whole and self._is_kept and not self._is_lost:
            self._ended = None
            self.idle_since_s = self._loop.time()

    def close(self) -> None:
        """Drop the connection, also in the middle of an answer."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Stamp, parse, hand to the sink."""
        self._at_s = self._loop.time()
        if self._ended is None:
            self._is_lost = True  # an answer to nothing
            return
        if self._ended.done():
            return
        try:
            self._count_head(data)
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end(NotHttpError("the server wants another protocol"))
        except httptools.HttpParserError as error:
            self._end(NotHttpError(f"the answer is no HTTP: {_short(error)}"))

    def _count_head(self, data: bytes) -> None:
        if not self._has_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                raise httptools.HttpParserError(f"headers of more than {MAX_HEAD_BYTES:,} bytes")

    def eof_received(self) -> None:
        """The server will send no more: the end of an answer that has no length of its own."""
        self._finish_at_eof("the server closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        """The same, or a reset."""
        self._is_lost = True
        self._finish_at_eof("the connection was reset" if exc else "the server closed the connection")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, from the parser."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The end of the headers, from the parser; an interim answer (100 Continue) is none."""
        status = self._parser.get_status_code()
        self._is_interim = 100 <= status < 200
        if self._is_interim:
            self._headers = {}
            return
        self._has_head = True
        self._sink.head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        """A piece of the body without its framing, from the parser."""
        self._has_body = True
        if not self._is_enough and self._sink.body(body, self._at_s):
            self._is_enough = True
            # The end of the framing is a read away at most: a moment's patience keeps the connection.
            assert self._ended is not None
            self._loop.call_later(PATIENCE_S, _settle, self._ended)

    def on_message_complete(self) -> None:
        """The end of the answer, from the parser."""
        if self._is_interim:
            return
        self._is_whole = True
        self._is_kept = self._parser.should_keep_alive()
        self._end(None)

    def _finish_at_eof(self, reason: str) -> None:
        if self._ended is None or self._ended.done():
            return
        has_own_end = "content-length" in self._headers or "transfer-encoding" in self._headers
        if self._has_head and not has_own_end and "reset" not in reason:
            self._end(None)
        else:
            self._end(ConnectionFailedError(reason, has_body=self._has_body))

    def _end(self, error: BaseException | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


def _settle(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
