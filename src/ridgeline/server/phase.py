"""Phase: whether the server loads, serves, drains or has failed; and who is answered meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from starlette.types import ASGIApp, Receive, Scope, Send

from ridgeline.server.error_response import error_response, retry_after

ALWAYS_ANSWERED = frozenset({"/health", "/ping", "/ready", "/version", "/metrics"})
"""Paths that tell the phase, or that people look at because of it."""
LOADING_RETRY_AFTER_S = 2.0


class Phase(StrEnum):
    """Of a server's life; requests for work are taken in READY only."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


_REFUSALS = {
    Phase.LOADING: "the model is loading; try again in a moment",
    Phase.DRAINING: "the server is shutting down; it finishes what it has begun",
    Phase.FAILED: "the engine has failed and the server must be restarted",
}


class PhaseGate:
    """ASGI middleware: 503 with `Retry-After` for work that can't be taken in this phase.

    `rejected` counts refusals, by the phase's name.
    """

    def __init__(
        self,
        app: ASGIApp,
        phase: Callable[[], Phase],
        retry_after_s: Callable[[], float],
        *,
        rejected: Callable[[str], None],
    ) -> None:
        self._app = app
        self._rejected = rejected
        self._phase = phase
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        phase = self._phase()
        if scope["type"] != "http" or phase is Phase.READY or scope["path"] in ALWAYS_ANSWERED:
            await self._app(scope, receive, send)
            return
        self._rejected(phase.value)
        seconds = LOADING_RETRY_AFTER_S if phase is Phase.LOADING else self._retry_after_s()
        response = error_response(503, _REFUSALS[phase], code=phase.value, headers=retry_after(seconds))
        await response(scope, receive, send)
