"""A server process without a model: the real guards and lifecycle around an app of three routes.

Run as `python -m tests.server.stub_server JSON`, the JSON being arguments of `ServerConfig` and `load_s` (a
failure if negative), `load_once_there` (a file that the load waits for), `num_seqs`. `/v1/count?n=N` streams
N numbers, 20 ms apart, and tells in its last line why it ended.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ridgeline.config.server import ServerConfig
from ridgeline.engine.clock import MonotonicClock
from ridgeline.errors import ConfigError, OverloadedError
from ridgeline.outputs import CompletionOutput, FinishReason, RequestMetrics, RequestOutput
from ridgeline.server.admission import Admission
from ridgeline.server.error_response import error_response, retry_after
from ridgeline.server.guards import guarded
from ridgeline.server.lifecycle import Lifecycle, Listening
from ridgeline.server.listeners import listen, url_of
from ridgeline.server.log_writer import log_to_stderr
from ridgeline.server.state import ServerState

STEP_S = 0.02
METRICS = RequestMetrics(7, 3, 5, ttft_s=0.011, tpot_s=0.022, queue_s=0.001)


class Counting:
    """Stands for the engine: every request counts until it is told to end."""

    model_name = "stub"
    failure = None

    def __init__(self) -> None:
        self.finish_reason: FinishReason | None = None

    def finish_all(self, finish_reason: FinishReason) -> None:
        self.finish_reason = finish_reason

    def close(self) -> None:
        print("closed", flush=True)

    async def count(self, limit: int) -> AsyncIterator[str]:
        for number in range(limit):
            if self.finish_reason is not None:
                yield str(self.finish_reason)
                return
            yield str(number)
            await asyncio.sleep(STEP_S)
        yield "length"


def new_app(state: ServerState) -> Starlette:
    async def count(request: Request) -> Response:
        try:
            state.admission.enter(1, state.clock.now())
        except OverloadedError as error:
            return error_response(429, str(error), headers=retry_after(error.retry_after_s))
        return StreamingResponse(lines(request), media_type="text/plain")

    async def lines(request: Request) -> AsyncIterator[str]:
        assert isinstance(state.async_llm, Counting)
        try:
            async for line in state.async_llm.count(int(request.query_params["n"])):
                yield line + "\n"
            ended = CompletionOutput(0, "", [], finish_reason=FinishReason(line))
            request.state.facts.add(RequestOutput("cmpl-1", None, [], [ended], True, metrics=METRICS))
        finally:
            state.admission.leave(1, state.clock.now())

    async def echo(request: Request) -> Response:
        return JSONResponse({"num_bytes": len(await request.body()), "id": request.state.request_id})

    async def big(_: Request) -> Response:
        return Response(b"x" * 32 * 2**20)

    async def health(_: Request) -> Response:
        known = {"phase": state.phase, "num_sequences": state.admission.num_sequences}
        return JSONResponse({**known, "num_settled_objects": gc.get_freeze_count()})

    async def fail(_: Request) -> Response:
        raise ZeroDivisionError

    return Starlette(
        routes=[
            Route("/v1/count", count),
            Route("/v1/echo", echo, methods=["GET", "POST"]),
            Route("/v1/big", big),
            Route("/v1/fail", fail),
            Route("/health", health),
            Route("/ping", health),
            Route("/ready", health),
            Route("/metrics", health),
        ]
    )


def main() -> None:
    settings = json.loads(sys.argv[1])
    load_s, num_seqs = settings.pop("load_s", 0), settings.pop("num_seqs", 2)
    load_once_there = Path(settings.pop("load_once_there", "/"))
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    config = ServerConfig(**{"port": 0, **settings})
    admission = Admission(max_num_seqs=num_seqs, max_num_waiting=config.max_num_waiting)
    state = ServerState(config, MonotonicClock(), admission)
    try:
        listening = [Listening(listen(config.host, config.port), guarded(new_app(state), state))]
    except ConfigError as error:
        sys.exit(f"error: {error}")
    url = url_of(listening[0].listener)
    print("listening", url, flush=True)

    def load() -> Counting:
        if load_s < 0:
            raise ConfigError("model", "stub", "does not load")
        time.sleep(load_s)
        while not load_once_there.exists():
            time.sleep(0.02)
        return Counting()

    log_writer = log_to_stderr(config.log_format)
    try:
        Lifecycle(
            state, listening, load, lambda: print("ready", url, flush=True), log_writer=log_writer
        ).run()
    except ConfigError as error:
        sys.exit(f"error: {error}")
    finally:
        log_writer.close()


if __name__ == "__main__":
    main()
