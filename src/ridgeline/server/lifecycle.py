"""Lifecycle: sockets open, the model loads, requests are served, a signal drains, the process ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import uvicorn
import uvloop
from starlette.types import ASGIApp

from ridgeline.outputs import FinishReason
from ridgeline.server.http_protocol import guarded_protocol
from ridgeline.server.log_writer import LogWriter
from ridgeline.server.phase import Phase
from ridgeline.server.state import ServerState, Serving

FLUSH_TIMEOUT_S = 5.0
"""How long answers that are complete may take to reach their clients at the end."""
KEEP_ALIVE_S = 30.0
_POLL_S = 0.02

_logger = logging.getLogger("ridgeline")


@dataclass(frozen=True, slots=True)
class Listening:
    """A bound socket and the app that answers on it."""

    listener: socket.socket
    app: ASGIApp


class Lifecycle:
    """Runs the servers of one process, all in one event loop.

    `load` makes the engine; it runs in a thread while the sockets already answer 503. `ready` is called
    once it is there. SIGTERM or SIGINT begins the end: no new work, `drain_timeout_s` for what runs, then
    it ends with finish reason `timeout`. A second signal ends the process at once.
    """

    def __init__(
        self,
        state: ServerState,
        listening: Sequence[Listening],
        load: Callable[[], Serving],
        ready: Callable[[], None],
        *,
        log_writer: LogWriter,
    ) -> None:
        self._state = state
        self._load = load
        self._ready = ready
        self._log_writer = log_writer
        self._listening = tuple(listening)
        self._servers = [_server(part.app, state) for part in listening]
        self._stop = asyncio.Event()
        self._signals: list[int] = []

    def run(self) -> None:
        """Serve until a signal.

        Raises:
            RidgelineError: the model can't be loaded.
        """
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        serving = [
            asyncio.create_task(server.serve(sockets=[part.listener]))
            for server, part in zip(self._servers, self._listening, strict=True)
        ]
        try:
            if await self._load_model():
                await self._stop.wait()
                await self._drain()
        finally:
            for server in self._servers:
                server.should_exit = True
            await asyncio.gather(*serving)
            if self._state.async_llm is not None:
                await asyncio.to_thread(self._state.async_llm.close)

    async def _load_model(self) -> bool:
        """Load, unless a signal comes first; then the process ends here, as nothing can stop a load."""
        loaded: asyncio.Future[Serving] = asyncio.get_running_loop().create_future()
        # Not the loop's pool: its threads would hold up the end of the process.
        threading.Thread(target=self._load_into, args=(loaded,), name="ridgeline-load", daemon=True).start()
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((loaded, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not loaded.done():
            self._exit(0)
        stopping.cancel()
        self._state.async_llm = loaded.result()
        if self._stop.is_set():
            return False
        self._state.life_phase = Phase.READY
        self._ready()
        return True

    def _load_into(self, loaded: asyncio.Future[Serving]) -> None:
        loop = loaded.get_loop()
        try:
            serving = self._load()
            _settle_heap()
        except BaseException as error:  # noqa: BLE001 - handed on to the loop's thread
            loop.call_soon_threadsafe(loaded.set_exception, error)
        else:
            loop.call_soon_threadsafe(loaded.set_result, serving)

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        if len(self._signals) > 1:
            self._exit(128 + number)
        if self._state.life_phase is Phase.READY:
            self._state.life_phase = Phase.DRAINING
        self._stop.set()

    async def _drain(self) -> None:
        """Let the running requests end by themselves, then by their reason `timeout`."""
        admission, config = self._state.admission, self._state.config
        if admission.num_sequences:
            _logger.info(
                "stopping: %d sequences have %g s to end", admission.num_sequences, config.drain_timeout_s
            )
        if not await self._idle_within(config.drain_timeout_s):
            _logger.warning("%d sequences end by timeout", admission.num_sequences)
            assert self._state.async_llm is not None
            self._state.async_llm.finish_all(FinishReason.TIMEOUT)
            await self._idle_within(FLUSH_TIMEOUT_S)

    async def _idle_within(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + seconds
        while self._state.admission.num_sequences and loop.time() < ends_at_s:
            await asyncio.sleep(_POLL_S)
        return not self._state.admission.num_sequences

    def _exit(self, status: int) -> None:
        self._log_writer.close()
        os._exit(status)


def _settle_heap() -> None:
    """Take all that is there for good out of the garbage collector's sight.

    Modules, model and app are some 70,000 objects; looking through them stops every stream for 50 ms.
    """
    gc.collect()
    gc.freeze()


class _Server(uvicorn.Server):
    """uvicorn's server, without its own signal handlers: they would end it amid a drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: ASGIApp, state: ServerState) -> uvicorn.Server:
    config = state.config
    return _Server(
        uvicorn.Config(
            app,
            loop="none",
            http=guarded_protocol(config.body_timeout_s, config.stalled_client_timeout_s),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(KEEP_ALIVE_S),
            timeout_graceful_shutdown=int(FLUSH_TIMEOUT_S),
        )
    )
