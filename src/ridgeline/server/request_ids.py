"""RequestIds: ASGI middleware that gives every request an id, or keeps the one it came with; KnownIds."""

from __future__ import annotations

import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"
_ACCEPTED = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class KnownIds:
    """The engine's ids of the last requests by their `x-request-id`; of two with the same, the later's."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._engine_ids: dict[str, str] = {}

    def remember(self, request_id: str, engine_request_id: str) -> None:
        """Note what the engine calls this request; of too many the oldest is forgotten."""
        self._engine_ids.pop(request_id, None)
        self._engine_ids[request_id] = engine_request_id
        if len(self._engine_ids) > self._capacity:
            del self._engine_ids[next(iter(self._engine_ids))]

    def engine_id(self, request_id: str) -> str | None:
        """What the engine calls it; None if that is not known."""
        return self._engine_ids.get(request_id)


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
