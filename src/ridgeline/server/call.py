"""Call: the requests that one HTTP request put into the engine, until they are over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from fastapi import Request
from starlette.types import Receive

from ridgeline.async_llm import AsyncLLM
from ridgeline.engine.async_engine import Submission
from ridgeline.engine.delta_stream import DeltaStream
from ridgeline.errors import RidgelineError
from ridgeline.metrics.spans import TracedCall
from ridgeline.outputs import CompletionOutput, FinishReason, RequestOutput
from ridgeline.server.access_log import RequestFacts
from ridgeline.server.error_response import error_response
from ridgeline.server.errors import FormFailedError
from ridgeline.server.state import ServerState

_T = TypeVar("_T")
CLIENT_CLOSED_REQUEST = 499


def loaded_llm(state: ServerState) -> AsyncLLM:
    """The engine's bridge; the phase gate lets nobody here before it is loaded."""
    assert isinstance(state.async_llm, AsyncLLM)
    return state.async_llm


class Call:
    """Holds its places in the queue from the start; `close` must follow, in whatever way it ends.

    `form_field` names what asked for a form of the text, should it fail; `trace` is what the spans of the
    call say of it, where spans are exported.
    """

    def __init__(
        self,
        state: ServerState,
        num_sequences: int,
        facts: RequestFacts,
        *,
        form_field: str,
        trace: TracedCall,
    ) -> None:
        self._state = state
        self._num_sequences = num_sequences
        self._facts = facts
        self._form_field = form_field
        self._trace = trace
        self._stream: DeltaStream | None = None
        self._error: FormFailedError | None = None
        self._is_open = True
        state.admission.enter(num_sequences, state.clock.now())

    async def start(self, submissions: Sequence[Submission]) -> None:
        """Hand the requests to the engine; returns once it has taken them.

        Raises:
            RequestError, EngineError: it can't.
        """
        self._facts.engine_request_id = submissions[0].request_id
        if self._facts.request_id is not None:
            self._state.known_ids.remember(self._facts.request_id, submissions[0].request_id)
        export = self._state.trace_export
        request_ids = [each for submission in submissions for each in submission.engine_request_ids]
        if export is not None:
            export.begin(request_ids, self._trace)
        try:
            self._stream = loaded_llm(self._state).open(submissions)
            await self._stream.accepted()
        except RidgelineError:
            if export is not None:
                export.forget(request_ids)
            raise

    async def take(self) -> list[RequestOutput]:
        """New deltas of any of the requests; empty at the end.

        Raises:
            FormFailedError: the form of one of them can't be followed any more; after its last delta.
            EngineError: one of them failed, through no fault of the caller.
        """
        assert self._stream is not None
        if self._error is not None:
            raise self._error
        deltas = await self._stream.take()
        for delta in deltas:
            self._facts.add(delta)
            self._error = self._error or self._failure(delta)
        return deltas

    async def whole(self, submissions: Sequence[Submission]) -> list[RequestOutput]:
        """All outputs, in the order of the submissions."""
        await self.start(submissions)
        outputs = {
            s.request_id: RequestOutput(
                s.request_id,
                s.prompt.text,
                s.prompt.token_ids,
                [CompletionOutput(index, "", []) for index in range(s.params.n)],
                finished=False,
            )
            for s in submissions
        }
        while deltas := await self.take():
            for delta in deltas:
                outputs[delta.request_id].extend(delta)
        return list(outputs.values())

    def close(self) -> None:
        """Abort what nobody reads any more and give the places back."""
        if not self._is_open:
            return
        self._is_open = False
        if self._stream is not None:
            loaded_llm(self._state).abort_unfinished(self._stream)
        self._state.admission.leave(self._num_sequences, self._state.clock.now())

    def _failure(self, delta: RequestOutput) -> FormFailedError | None:
        """The finish reason `error` reaches a stream only for a form; other failures end the stream."""
        for completion in delta.outputs:
            if completion.finish_reason is FinishReason.ERROR:
                remedy = f"grew too complex while it was followed; simplify it: {completion.stop_reason}"
                error = FormFailedError(self._form_field, "…", remedy)
                self._facts.error = type(error).__name__
                return error
        return None


class ClientGoneError(Exception):
    """The client closed its connection before the answer."""


async def while_connected(receive: Receive, work: Awaitable[_T]) -> _T:
    """The result of `work`, which is cancelled when the client goes away.

    Raises:
        ClientGoneError: it did.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def facts_of(request: Request) -> RequestFacts:
    """What the access log wants to know; a fresh record where no log stands around the app."""
    facts = request.scope.get("state", {}).get("facts")
    return facts if isinstance(facts, RequestFacts) else RequestFacts()


gone_response = error_response(CLIENT_CLOSED_REQUEST, "the client closed the connection")
"""Reaches nobody but the log."""
