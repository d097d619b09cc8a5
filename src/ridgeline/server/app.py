"""new_app: every endpoint of the server on one FastAPI app; the guards stand around it."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import APIRoute

from ridgeline import __version__
from ridgeline.server.admin import admin_router
from ridgeline.server.error_response import ERROR_RESPONSES
from ridgeline.server.errors import install_error_handlers
from ridgeline.server.full_queue import FullQueueGate
from ridgeline.server.generation import ENDPOINTS, generation_router
from ridgeline.server.liveness import liveness_router
from ridgeline.server.models import models_router
from ridgeline.server.observation import observation_router
from ridgeline.server.state import ServerState
from ridgeline.server.tokenization import tokenization_router


def new_app(state: ServerState) -> FastAPI:
    """The endpoints over `state`, whose engine may still be loading."""
    app = FastAPI(
        title="ridgeline",
        version=__version__,
        redoc_url=None,
        redirect_slashes=False,
        docs_url=None,
        responses=ERROR_RESPONSES,
    )
    install_error_handlers(app)
    app.add_middleware(
        FullQueueGate,
        admission=state.admission,
        clock=state.clock,
        paths=[endpoint.path for endpoint in ENDPOINTS],
        rejected=state.metrics.rejected,
    )
    for router in (
        liveness_router(state),
        models_router(state),
        generation_router(state),
        tokenization_router(state),
    ):
        app.include_router(router)
    if state.config.metrics_port is None:
        for router in (observation_router(state), admin_router(state)):
            app.include_router(router)
    routes = [each for each in app.routes if isinstance(each, APIRoute)]
    state.metrics.expect_answers((each.path, method) for each in routes for method in each.methods or ())
    return app
