"""BodyLimit: ASGI middleware that reads a request's body whole, within a size and a time."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.server.error_response import error_response

MAX_LOGGED_BYTES = 2000


class BodyLimit:
    """413 for a body above `max_body_bytes`, 408 for one that is not here after `timeout_s`.

    What passes has its body in one message, so that nothing behind this waits for a slow sender. A body
    that its `content-length` tells to be too large is refused at once; the connection throws it away.
    """

    def __init__(
        self, app: ASGIApp, *, max_body_bytes: int, timeout_s: float, log_bodies: bool = False
    ) -> None:
        self._app = app
        self._log_bodies = log_bodies
        self._max_body_bytes = max_body_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, then pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._read(scope, receive)
        except TimeoutError:
            message = f"the body was not complete after {self._timeout_s:g} s"
            await error_response(408, message, headers={"connection": "close"})(scope, receive, send)
            return
        except _TooLargeError:
            message = f"the body is larger than {self._max_body_bytes} bytes"
            await error_response(413, message, code="body_too_large")(scope, receive, send)
            return
        if body is None:
            return
        if self._log_bodies:
            scope["state"]["logged_body"] = body[:MAX_LOGGED_BYTES].decode(errors="replace")
        await self._app(scope, _replaying(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None when the client went away before its end."""
        if _content_length(scope) > self._max_body_bytes:
            raise _TooLargeError
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._max_body_bytes:
                raise _TooLargeError
            if not message.get("more_body", False):
                return bytes(body)


class _TooLargeError(Exception):
    """The body exceeds the limit."""


def _content_length(scope: Scope) -> int:
    # The parser has refused what is no number of 64 bits; zeros before it may be any number.
    lengths = (value.lstrip(b"0") for name, value in scope["headers"] if name == b"content-length")
    return max((int(value or b"0") for value in lengths), default=0)


def _replaying(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
