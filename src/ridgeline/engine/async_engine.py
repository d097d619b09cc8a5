"""AsyncEngine: an engine that steps in a thread of its own, and its bridge to event loops.

Commands go in through a queue, on which the thread sleeps while there is no work. Deltas go out in one
call per step and event loop, whatever the number of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeVar

from ridgeline.core.events import DeltasCoalesced, LogitsCorrupted
from ridgeline.engine.delta_stream import DeltaStream
from ridgeline.engine.engine import Engine
from ridgeline.engine.failing_step import execute_survivors
from ridgeline.engine.input_processor import InputProcessor, ParsedPrompt, engine_request_ids
from ridgeline.engine.output_processor import OutputProcessor
from ridgeline.errors import EngineError, NonFiniteLogitsError, RidgelineError
from ridgeline.outputs import FinishReason, RequestOutput
from ridgeline.sampling_params import SamplingParams

_MAX_IDLE_DEADLINES = 1000
_T = TypeVar("_T")
_logger = logging.getLogger("ridgeline")


@dataclass(frozen=True, slots=True)
class Submission:
    """One prompt on its way into the engine; `deadline_at_s` on the engine's clock."""

    request_id: str
    prompt: ParsedPrompt
    params: SamplingParams
    arrived_at_s: float
    deadline_at_s: float | None = None

    @property
    def engine_request_ids(self) -> list[str]:
        """The ids that the engine's events name."""
        return engine_request_ids(self.request_id, self.params.n)


@dataclass(frozen=True, slots=True)
class _Reader:
    stream: DeltaStream
    loop: asyncio.AbstractEventLoop


def _ignore(_: EngineError) -> None:
    """For commands that nobody waits for."""


class _Command(NamedTuple):
    """Work for the engine's thread, and what to do where that thread is dead."""

    run: Callable[[], None]
    fail: Callable[[EngineError], None]


class AsyncEngine:
    """Owns the engine's thread; its methods may be called from any thread.

    The thread starts with the first command. A request that makes a step fail ends with reason `error`,
    its neighbours go on. Whatever else fails ends the thread: see `failure`.
    """

    def __init__(
        self, engine: Engine, input_processor: InputProcessor, output_processor: OutputProcessor
    ) -> None:
        self._engine = engine
        self._input_processor = input_processor
        self._output_processor = output_processor
        self._commands: SimpleQueue[_Command] = SimpleQueue()
        self._readers: dict[str, _Reader] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._is_closing = False
        self._failure: EngineError | None = None

    @property
    def failure(self) -> EngineError | None:
        """What ended the thread, so that nothing can be computed any more; None while all is well."""
        return self._failure

    def open(self, submissions: Sequence[Submission]) -> DeltaStream:
        """Queue requests that are read together; call it in the event loop that reads them."""
        request_ids = [submission.request_id for submission in submissions]
        several = {submission.request_id for submission in submissions if submission.params.n > 1}
        stream = DeltaStream(request_ids, lambda delta: self._tell_merged(delta, delta.request_id in several))
        reader = _Reader(stream, asyncio.get_running_loop())
        self._send(
            lambda: self._add(submissions, reader), lambda error: _call(reader.loop, stream.fail, error)
        )
        return reader.stream

    def abort(self, request_ids: Sequence[str], finish_reason: FinishReason = FinishReason.ABORT) -> None:
        """End requests before the next step; a reader gets the last delta."""
        self._send(lambda: self._abort(request_ids, finish_reason))

    def finish_all(self, finish_reason: FinishReason) -> None:
        """End every request for this reason."""
        self._send(lambda: self._abort(self._output_processor.request_ids(), finish_reason))

    async def call(self, function: Callable[[], _T]) -> _T:
        """Run `function` in the engine's thread between two steps; its result."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def run() -> None:
            try:
                _call(loop, _settle, future, function())
            except Exception as error:  # noqa: BLE001 - handed on to the caller
                _call(loop, _settle_with, future, error)

        self._send(run, lambda error: _call(loop, _settle_with, future, error))
        return await future

    def close(self) -> None:
        """End the thread after the current step; abort what is unfinished. The engine stays the caller's."""
        with self._start_lock:
            self._is_closing = True
            thread = self._thread
        if thread is not None:
            self._commands.put(_Command(lambda: None, _ignore))
            thread.join()

    def _tell_merged(self, delta: RequestOutput, has_several: bool) -> None:
        """A slow reader has taken deltas of several steps as one; called in its event loop."""
        at_s = self._engine.clock.now()
        events = [
            DeltasCoalesced(
                at_s,
                f"{delta.request_id}-{output.index}" if has_several else delta.request_id,
                len(output.token_ids),
            )
            for output in delta.outputs
            if output.token_ids
        ]
        # An engine that was closed has no listeners to tell.
        with contextlib.suppress(EngineError):
            self._send(lambda: self._engine.publish_events(*events))

    def _send(self, run: Callable[[], None], fail: Callable[[EngineError], None] = _ignore) -> None:
        """Have `run` done by the thread; `fail` is called instead where it is dead, or dies before that."""
        with self._start_lock:
            if self._is_closing:
                raise EngineError("the engine was closed")
            failure = self._failure
            if failure is None:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="ridgeline-engine", daemon=True)
                    self._thread.start()
                self._commands.put(_Command(run, fail))
        if failure is not None:
            fail(failure)

    def _run(self) -> None:
        try:
            while self._take_commands():
                self._end_overdue()
                if self._engine.has_unfinished_requests:
                    self._step()
                else:
                    self._engine.publish_events()
            self._fail_all(EngineError("the engine was closed"))
        except BaseException as error:
            _logger.critical("the engine's thread ends by a fault; restart the server", exc_info=error)
            self._die(_fault(error))

    def _take_commands(self) -> bool:
        """Run what was sent; sleep until something is, while no request needs a step. False at the end."""
        if not self._engine.has_unfinished_requests:
            self._do(self._commands.get())
        with contextlib.suppress(Empty):
            while True:
                self._do(self._commands.get_nowait())
        return not self._is_closing

    def _do(self, command: _Command) -> None:
        try:
            command.run()
        except BaseException as error:
            command.fail(_fault(error))
            raise

    def _die(self, failure: EngineError) -> None:
        """Tell everybody who waits. The engine is left alone: nobody knows what state it is in."""
        with self._start_lock:
            self._failure = failure
        with contextlib.suppress(Empty):
            while True:
                self._commands.get_nowait().fail(failure)
        for reader in self._readers.values():
            _call(reader.loop, reader.stream.fail, failure)
        self._readers.clear()

    def _step(self) -> None:
        try:
            self._deliver(self._compute())
        except Exception as error:
            # Scheduling or taking a step into account failed: any request may have lost a token.
            _logger.exception("a step failed; all requests in flight end")
            self._fail_all(EngineError(f"a step of the engine failed: {type(error).__name__}"))

    def _compute(self) -> list[RequestOutput]:
        engine = self._engine
        scheduler_output = engine.schedule()
        faults: Mapping[str, Exception] = {}
        try:
            executed = engine.execute(scheduler_output)
        except Exception:
            _logger.exception("a step failed to compute; its requests are computed one by one")
            executed, faults = execute_survivors(engine, scheduler_output)
        deltas = self._output_processor.process(engine.commit(executed))
        for request_id, fault in faults.items():
            self._fail_request(request_id, fault)
        return deltas

    def _fail_request(self, request_id: str, fault: Exception) -> None:
        """End what a request that can't be computed belongs to."""
        if isinstance(fault, NonFiniteLogitsError):
            self._engine.publish_events(LogitsCorrupted(self._engine.clock.now(), request_id))
        reason = f": {fault}" if isinstance(fault, EngineError) else ""
        for group_id in self._output_processor.groups_of([request_id]):
            self._fail(group_id, EngineError(f"the engine failed to compute this request{reason}"))

    def _add(self, submissions: Sequence[Submission], reader: _Reader) -> None:
        added: list[str] = []
        try:
            for submission in submissions:
                added.append(submission.request_id)
                self._add_one(submission, reader)
        except RidgelineError as error:
            for request_id in added:
                self._output_processor.abort(request_id)
                self._readers.pop(request_id, None)
            _call(reader.loop, reader.stream.fail, error)
        else:
            _call(reader.loop, reader.stream.accept)

    def _add_one(self, submission: Submission, reader: _Reader) -> None:
        request_id = submission.request_id
        requests = self._input_processor.make_requests(
            submission.prompt,
            submission.params,
            request_id=request_id,
            arrived_at_s=submission.arrived_at_s,
        )
        self._readers[request_id] = reader
        self._output_processor.add(request_id, submission.prompt.text, requests)
        for request in requests:
            self._engine.add_request(request)
        if submission.deadline_at_s is not None:
            heapq.heappush(self._deadlines, (submission.deadline_at_s, request_id))
            self._forget_old_deadlines()

    def _end_overdue(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._engine.clock.now():
            self._abort([heapq.heappop(self._deadlines)[1]], FinishReason.TIMEOUT)

    def _forget_old_deadlines(self) -> None:
        """Those of requests that ended earlier, once they are most of the heap."""
        if len(self._deadlines) > 2 * len(self._readers) + _MAX_IDLE_DEADLINES:
            self._deadlines = [each for each in self._deadlines if each[1] in self._readers]
            heapq.heapify(self._deadlines)

    def _abort(self, request_ids: Sequence[str], finish_reason: FinishReason) -> None:
        deltas = [self._output_processor.abort(request_id, finish_reason) for request_id in request_ids]
        self._deliver([delta for delta in deltas if delta is not None])

    def _deliver(self, deltas: Sequence[RequestOutput]) -> None:
        """Hand deltas to their readers, with one call for each event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[DeltaStream, RequestOutput]]] = {}
        for delta in deltas:
            readers = self._readers
            reader = readers.pop(delta.request_id) if delta.finished else readers[delta.request_id]
            by_loop.setdefault(reader.loop, []).append((reader.stream, delta))
        for loop, parcel in by_loop.items():
            _call(loop, _push_all, parcel)

    def _fail(self, request_id: str, error: EngineError) -> None:
        self._output_processor.abort(request_id, FinishReason.ERROR)
        reader = self._readers.pop(request_id, None)
        if reader is not None:
            _call(reader.loop, reader.stream.fail, error)

    def _fail_all(self, error: EngineError) -> None:
        for request_id in list(self._readers):
            self._fail(request_id, error)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> None:
    # A loop that is closed has no readers any more.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def _fault(error: BaseException) -> EngineError:
    return EngineError(f"the engine has failed: {type(error).__name__}")


def _push_all(parcel: Sequence[tuple[DeltaStream, RequestOutput]]) -> None:
    for stream, delta in parcel:
        stream.push(delta)


def _settle(future: asyncio.Future[_T], result: _T) -> None:
    if not future.done():
        future.set_result(result)


def _settle_with(future: asyncio.Future[_T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
