"""Whether the server lives, and what it is: /health, /ping, /ready, /version."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from ridgeline import __version__
from ridgeline.server.error_response import error_response
from ridgeline.server.phase import Phase
from ridgeline.server.state import ServerState


def liveness_router(state: ServerState) -> APIRouter:
    """Routes for whoever watches the server."""
    router = APIRouter(tags=["liveness"])

    @router.get("/health", response_model=None, response_class=Response)
    @router.get("/ping", response_model=None, response_class=Response)
    async def health() -> Response:
        """200 from the loaded model on, as long as the engine works; also while it drains."""
        if state.phase in (Phase.LOADING, Phase.FAILED):
            return _unhealthy(state)
        return Response(status_code=200)

    @router.get("/ready", response_model=None)
    async def ready() -> Response:
        """200 once the model is loaded and until the server drains; 503 otherwise."""
        if state.phase is not Phase.READY:
            return _unhealthy(state)
        return JSONResponse({"status": "ready"})

    @router.get("/version")
    async def version() -> dict[str, str]:
        """The version of ridgeline."""
        return {"version": __version__}

    return router


def _unhealthy(state: ServerState) -> Response:
    failure = state.async_llm.failure if state.async_llm is not None else None
    message = str(failure) if failure is not None else f"the server is {state.phase}"
    return error_response(503, message, code=state.phase.value)
