"""ApiKeys: ASGI middleware that lets in who knows one of the keys."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256

from starlette.types import ASGIApp, Receive, Scope, Send

from ridgeline.server.error_response import error_response

OPEN_PATHS = frozenset({"/health", "/ping"})
"""Liveness routes, which need no key; every other path does, unknown ones included."""

_MISSING = "no API key: send it as `Authorization: Bearer KEY`"
_WRONG = "wrong API key"


class ApiKeys:
    """401 in OpenAI's shape unless `Authorization: Bearer` carries one of `keys`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = tuple(sha256(key.encode()).digest() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the key, then pass on."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        key = _bearer(scope)
        if key is not None and self._knows(key):
            await self._app(scope, receive, send)
            return
        response = error_response(
            401,
            _MISSING if key is None else _WRONG,
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
        await response(scope, receive, send)

    def _knows(self, key: bytes) -> bool:
        """Compares digests, all of them: the time tells neither a key's length nor which one is near."""
        digest = sha256(key).digest()
        return sum([hmac.compare_digest(digest, known) for known in self._digests]) > 0


def _bearer(scope: Scope) -> bytes | None:
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, key = values[0].partition(b" ")
    return key.strip() or None if scheme.lower() == b"bearer" else None
