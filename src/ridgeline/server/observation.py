"""GET /metrics and /debug/requests/{id}: what the server counted, and what happened to a request."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.async_llm import AsyncLLM
from ridgeline.engine.engine import EngineStats
from ridgeline.errors import EngineError
from ridgeline.metrics.prometheus import Gauges, ServerMetrics
from ridgeline.metrics.request_timeline import request_timeline
from ridgeline.perf.op_costs import WorkTotals
from ridgeline.server.call import loaded_llm
from ridgeline.server.error_response import error_response
from ridgeline.server.state import ServerState

OTHER_PATH = "other"
_TEXT_FORMATS: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")
        }
    }
}


def observation_router(state: ServerState) -> APIRouter:
    """Routes for whoever wants to know why."""
    router = APIRouter(tags=["observation"])

    @router.get("/metrics", response_model=None, responses=_TEXT_FORMATS, response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Prometheus' text format, or OpenMetrics where the `Accept` header asks for it."""
        if state.async_llm is not None:
            state.metrics.set_gauges(await _gauges(state))
        body, content_type = state.metrics.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    @router.get("/debug/requests/{request_id}", response_model=None)
    async def show_request(
        request_id: str,
        choice: Annotated[int, Query(ge=0)] = 0,
        ttft_ms: Annotated[float | None, Query(gt=0)] = None,
    ) -> Response:
        """A request's life out of the event log, with the causes of its late tokens; 404 once it is gone.

        The id is the answer's or the request's `x-request-id`; `choice` is the index of one of several.
        With `ttft_ms` the first token counts as late only beyond that limit.
        """
        llm = loaded_llm(state)
        events = await llm.engine.call(llm.parts.event_log.events)
        engine_id = state.known_ids.engine_id(request_id) or request_id
        slo_s = ttft_ms / 1000 if ttft_ms is not None else None
        timeline = partial(request_timeline, ttft_slo_s=slo_s)
        for each in (f"{engine_id}-{choice}", *([engine_id] if choice == 0 else [])):
            document = await llm.in_text_thread(timeline, events, each)
            if document is not None:
                return JSONResponse(document)
        return error_response(404, f"the event log does not know the request {request_id!r}")

    return router


def describe_engine(metrics: ServerMetrics, llm: AsyncLLM) -> None:
    """Tell the metrics what they listen to, before it takes its first request."""
    parts = llm.parts
    metrics.describe_engine(
        max_model_len=parts.limits.max_model_len,
        cache_config={
            "block_size": str(parts.limits.block_size),
            "num_gpu_blocks": str(parts.limits.num_blocks),
            "enable_prefix_caching": str(parts.config.enable_prefix_caching),
        },
        work=WorkTotals(parts.model_shape),
    )


async def _gauges(state: ServerState) -> Gauges:
    """The engine right now; one that has failed runs nothing and holds nothing."""
    llm = loaded_llm(state)
    try:
        stats = await llm.stats()
    except EngineError:
        return Gauges(num_dropped_events=llm.parts.event_log.num_dropped_events)
    return Gauges(
        num_requests_running=stats.num_requests_running,
        num_requests_waiting=stats.num_requests_waiting,
        num_used_blocks=stats.num_used_blocks,
        num_idle_blocks=stats.num_idle_blocks,
        num_free_blocks=stats.num_free_blocks,
        num_slack_slots=stats.num_slack_slots,
        num_dropped_events=llm.parts.event_log.num_dropped_events,
        queue_wait_predicted_s=_queue_wait_s(state, stats),
    )


def _queue_wait_s(state: ServerState, stats: EngineStats) -> float | None:
    """What a newcomer would wait for its place; None while that is not known, as when blocks are short."""
    if stats.num_requests_waiting > state.admission.num_waiting:
        return None
    return state.admission.wait_s(state.clock.now())


class CountAnswers:
    """ASGI middleware: counts answers by route, method and status."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and look at the status of its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get("route")
                path = getattr(route, "path", OTHER_PATH)
                method = scope["method"] if route is not None else OTHER_PATH
                self._metrics.http_request(path, method, message["status"])
            await send(message)

        await self._app(scope, receive, counted)
