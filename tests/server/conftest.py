"""A server on a real socket, in a thread of its own, over a random model of a few hundred kilobytes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
import uvicorn

from ridgeline.async_llm import AsyncLLM
from ridgeline.config.server import ServerConfig
from ridgeline.engine.engine import EngineStats
from ridgeline.metrics.prometheus import MetricsSettings, ServerMetrics
from ridgeline.metrics.trace_export import TraceExport
from ridgeline.server.admission import Admission
from ridgeline.server.app import new_app
from ridgeline.server.guards import guarded
from ridgeline.server.observation import describe_engine
from ridgeline.server.phase import Phase
from ridgeline.server.state import ServerState


@dataclass
class Served:
    """A running server and its engine."""

    llm: AsyncLLM
    state: ServerState
    port: int
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def stats(self) -> EngineStats:
        return asyncio.run_coroutine_threadsafe(self.llm.stats(), self.loop).result(30)

    def assert_idle(self) -> None:
        """Nothing runs, waits or holds blocks; commands sent before are done by then."""
        stats = self.stats()
        assert (stats.num_requests_running, stats.num_requests_waiting, stats.num_used_blocks) == (0, 0, 0)
        assert self.state.admission.num_sequences == 0


class QuietServer(uvicorn.Server):
    """uvicorn without signal handlers, which only a main thread may set."""

    def install_signal_handlers(self) -> None:
        return


def serve(
    llm: AsyncLLM,
    config: ServerConfig,
    metrics: ServerMetrics | None = None,
    *,
    send_buffer_bytes: int | None = None,
    trace_export: TraceExport | None = None,
) -> Iterator[Served]:
    """Serve until the generator is closed; `metrics` and `trace_export` listen to the engine already.

    `send_buffer_bytes`: what the kernel may hold for a client that does not read; None: its own choice.
    """
    admission = Admission(max_num_seqs=32, max_num_waiting=config.max_num_waiting)
    state = ServerState(config, llm.clock, admission, Phase.READY, llm, trace_export=trace_export)
    state.metrics = metrics or state.metrics
    # asyncio turns Nagle's algorithm off only where the protocol is named: else each body waits 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if send_buffer_bytes is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    app = guarded(new_app(state), state)
    server = QuietServer(
        uvicorn.Config(app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=5)
    )
    loops: list[asyncio.AbstractEventLoop] = []
    started = threading.Event()

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        started.set()
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert started.wait(30)
    try:
        yield Served(llm, state, listener.getsockname()[1], loops[0])
    finally:
        server.should_exit = True
        thread.join()
        llm.close()
        listener.close()


@pytest.fixture(scope="session")
def tiny_server(tiny_model: Path) -> Iterator[Served]:
    """The random model: fast, and its text means nothing."""
    yield from serve(AsyncLLM(str(tiny_model), num_threads=1, max_num_seqs=32), ServerConfig())


@pytest.fixture(scope="session")
def real_server(model_path: Path) -> Iterator[Served]:
    """The real model; its metrics listen."""
    metrics = ServerMetrics(MetricsSettings(model_name="smollm2"))
    settings = {"num_threads": 2, "block_size": 16, "kv_cache_bytes": 200_000_000}
    llm = AsyncLLM(str(model_path), listeners=[metrics], **settings)
    describe_engine(metrics, llm)
    yield from serve(llm, ServerConfig(), metrics)


NewServer = Callable[..., Served]


@pytest.fixture
def new_server(tiny_model: Path) -> Iterator[NewServer]:
    """Serve the random model under other settings."""
    running: list[Iterator[Served]] = []

    def make(
        config: ServerConfig | None = None, *, send_buffer_bytes: int | None = None, **settings: object
    ) -> Served:
        llm = AsyncLLM(**{"model": str(tiny_model), "num_threads": 1, **settings})
        running.append(serve(llm, config or ServerConfig(), send_buffer_bytes=send_buffer_bytes))
        return next(running[-1])

    yield make
    for server in running:
        server.close()  # type: ignore[attr-defined]
