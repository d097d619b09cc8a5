"""What stands around an app, from the outside in: ids, log, HEAD as GET, count, CORS, keys, body, phase."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from ridgeline.server.access_log import AccessLog
from ridgeline.server.api_keys import ApiKeys
from ridgeline.server.body_limit import BodyLimit
from ridgeline.server.head_requests import HeadAsGet
from ridgeline.server.observation import CountAnswers
from ridgeline.server.phase import PhaseGate
from ridgeline.server.request_ids import RequestIds
from ridgeline.server.state import ServerState


def guarded(app: ASGIApp, state: ServerState) -> ASGIApp:
    """`app` behind everything that `state.config` asks for."""
    config = state.config
    app = PhaseGate(
        app,
        lambda: state.phase,
        lambda: state.admission.retry_after_s(state.clock.now()),
        rejected=state.metrics.rejected,
    )
    app = BodyLimit(
        app,
        max_body_bytes=config.max_body_bytes,
        timeout_s=config.body_timeout_s,
        log_bodies=config.log_bodies,
    )
    if config.api_keys:
        app = ApiKeys(app, config.api_keys)
    if config.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=config.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return RequestIds(AccessLog(HeadAsGet(CountAnswers(app, state.metrics)), state.clock))
