"""RequestIds: ASGI middleware that gives every request an id, or keeps the one it came with."""

from __future__ import annotations

import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"
_ACCEPTED = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestIds:
    """Puts the id into `scope["state"]["request_id"]` and into the answer's `x-request-id`.

    An id of other characters, or longer than 128, is replaced: it goes into logs and traces.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Name the request, then pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given_id(scope) or uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER, request_id.encode())]
            await send(message)

        await self._app(scope, receive, send_named)


def _given_id(scope: Scope) -> str | None:
    values = [value for name, value in scope["headers"] if name == HEADER]
    return values[0].decode("ascii") if len(values) == 1 and _ACCEPTED.fullmatch(values[0]) else None
