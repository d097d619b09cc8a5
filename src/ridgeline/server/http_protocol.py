"""GuardedProtocol: uvicorn's HTTP/1.1 connection, with an end to waiting for its client."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from ridgeline.server.error_response import error_body

MAX_HEAD_BYTES = 65_536
"""Longest head, the request line and all headers, that need not arrive in one piece."""


class GuardedProtocol(HttpToolsProtocol):
    """Closes a connection whose request does not arrive or has no end, and one whose answer is not read."""

    # Inherits because a protocol class is what uvicorn lets one replace; each method adds a timer only.
    arrival_timeout_s: float
    stalled_timeout_s: float

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._arrival_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._is_message_open = False
        self._is_head_open = False
        self._num_head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Take what came; 431 once a head that is not complete is too long."""
        if self._is_head_open:
            self._num_head_bytes += len(data)
        super().data_received(data)
        if self._is_head_open and self._num_head_bytes > MAX_HEAD_BYTES:
            message = f"the request line and headers are longer than {MAX_HEAD_BYTES} bytes"
            self._answer_and_close(b"431 Request Header Fields Too Large", error_body(431, message))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected: its request is due."""
        super().connection_made(transport)
        self._await_arrival()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        _cancel(self._arrival_timer)
        _cancel(self._stall_timer)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A request's first byte is here: the rest of its headers is due."""
        super().on_message_begin()
        self._is_message_open = self._is_head_open = True
        self._num_head_bytes = 0
        self._await_arrival()

    def on_headers_complete(self) -> None:
        """The headers are here; `BodyLimit` times the body."""
        _cancel(self._arrival_timer)
        self._is_head_open = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is here, its body included."""
        _cancel(self._arrival_timer)
        self._is_message_open = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is out, perhaps before the request's end."""
        super().on_response_complete()
        if self._is_message_open:  # the rest of a body that was refused is thrown away, but not for ever
            self._await_arrival()

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.stalled_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        _cancel(self._stall_timer)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP; say so in OpenAI's shape."""
        self._answer_and_close(b"400 Bad Request", error_body(400, msg))

    def _await_arrival(self) -> None:
        _cancel(self._arrival_timer)
        self._arrival_timer = self.loop.call_later(self.arrival_timeout_s, self._give_up)

    def _give_up(self) -> None:
        if self._is_message_open:
            message = f"the request was not complete after {self.arrival_timeout_s:g} s"
            self._answer_and_close(b"408 Request Timeout", error_body(408, message))
        else:  # a silent connection
            self.transport.close()

    def _answer_and_close(self, status: bytes, body: bytes) -> None:
        if not self.transport.is_closing() and self._can_answer():
            self.transport.write(
                b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n%b" % (status, len(body), body)
            )
        self.transport.close()

    def _can_answer(self) -> bool:
        """Whether the request at fault is next to be answered; amid another answer it would garble it."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None:
            return True
        return not cycle.response_started if cycle.scope is self.scope else cycle.response_complete


def guarded_protocol(arrival_timeout_s: float, stalled_timeout_s: float) -> type[GuardedProtocol]:
    """The connection's class with these times, in the form that uvicorn's config takes."""
    times = {"arrival_timeout_s": arrival_timeout_s, "stalled_timeout_s": stalled_timeout_s}
    return type("TimedProtocol", (GuardedProtocol,), times)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
