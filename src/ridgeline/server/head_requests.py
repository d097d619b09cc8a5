"""HeadAsGet: ASGI middleware by which every route that answers GET answers HEAD."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class HeadAsGet:
    """Hands a HEAD on as a GET; uvicorn, which knows what was asked, sends the headers only.

    Source: RFC 9110 §9.3.2. Probes and AIPerf ask so whether a page is there.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        await self._app({**scope, "method": "GET"} if is_head else scope, receive, send)
