"""Routes for whoever operates the server, on the main port or on one of their own."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from starlette.responses import Response

from ridgeline import __version__
from ridgeline.server.call import loaded_llm
from ridgeline.server.errors import install_error_handlers
from ridgeline.server.liveness import liveness_router
from ridgeline.server.observation import observation_router
from ridgeline.server.state import ServerState


def admin_router(state: ServerState) -> APIRouter:
    """What changes or shows the engine's state."""
    router = APIRouter(tags=["admin"])

    @router.post("/reset_prefix_cache", response_model=None)
    async def reset_prefix_cache() -> Response:
        """Let nothing computed so far be found again; what is running goes on."""
        llm = loaded_llm(state)
        await llm.engine.call(llm.parts.engine.reset_prefix_cache)
        return Response(status_code=200)

    return router


def new_admin_app(state: ServerState) -> FastAPI:
    """Metrics, admin routes and probes, for `--metrics-port`."""
    app = FastAPI(title="ridgeline admin", version=__version__, redoc_url=None, docs_url=None)
    install_error_handlers(app)
    for router in (liveness_router(state), observation_router(state), admin_router(state)):
        app.include_router(router)
    return app
