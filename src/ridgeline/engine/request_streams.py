"""RequestStreams: many requests through one engine, each with an inbox of its own."""

from __future__ import annotations

import itertools
from collections import deque

from ridgeline.engine.engine import Engine
from ridgeline.engine.input_processor import InputProcessor, ParsedPrompt
from ridgeline.engine.output_processor import OutputProcessor
from ridgeline.errors import EngineError, RequestError
from ridgeline.outputs import RequestOutput
from ridgeline.sampling_params import SamplingParams


class RequestStreams:
    """Adds requests, steps the engine, and sorts the deltas by request."""

    def __init__(
        self, engine: Engine, input_processor: InputProcessor, output_processor: OutputProcessor
    ) -> None:
        self._engine = engine
        self._input_processor = input_processor
        self._output_processor = output_processor
        self._inboxes: dict[str, deque[RequestOutput]] = {}
        self._request_ids = map(str, itertools.count())

    def new_request_id(self) -> str:
        """An id that `add`, `next_delta` and `abort` take."""
        return next(self._request_ids)

    def add(
        self, request_id: str, prompt: ParsedPrompt, params: SamplingParams, *, arrived_at_s: float
    ) -> None:
        """Queue one prompt's requests.

        Raises:
            RequestError: the request can't be served; nothing was queued.
        """
        requests = self._input_processor.make_requests(
            prompt, params, request_id=request_id, arrived_at_s=arrived_at_s
        )
        # Known here before the engine knows it: whoever is interrupted in between can still abort it.
        self._inboxes[request_id] = deque()
        self._output_processor.add(request_id, prompt.text, requests)
        try:
            for request in requests:
                self._engine.add_request(request)
        except RequestError:
            self.abort(request_id)
            raise

    def next_delta(self, request_id: str) -> RequestOutput:
        """Step the engine until the request has something new; the last delta is `finished`.

        Raises:
            EngineError: the request was lost with a step that failed, or the engine was closed.
        """
        inbox = self._inboxes.get(request_id)
        if inbox is None:
            raise EngineError(f"request {request_id} was aborted: the engine was closed or a step failed")
        while not inbox:
            assert self._engine.has_unfinished_requests, "a request without an end"
            self.step()
        delta = inbox.popleft()
        if delta.finished:
            del self._inboxes[request_id]
        return delta

    def step(self) -> None:
        """Run one engine step and sort what it gave.

        A step that fails to compute is done again by the next call. One that is interrupted while it is
        scheduled or taken into account may have lost tokens of any request, so all are aborted rather than
        continued with a gap.
        """
        is_computing = False
        try:
            scheduler_output = self._engine.schedule()
            is_computing = True
            executed = self._engine.execute(scheduler_output)
            is_computing = False
            for delta in self._output_processor.process(self._engine.commit(executed)):
                self._inboxes[delta.request_id].append(delta)
        except BaseException:
            if not is_computing:
                self.abort_all()
            raise

    def abort(self, request_id: str) -> None:
        """End a request and forget its deltas; nothing happens when it is over."""
        if self._inboxes.pop(request_id, None) is not None:
            self._output_processor.abort(request_id)

    def abort_all(self) -> None:
        """End every request; whoever reads one of them is told."""
        for request_id in list(self._inboxes):
            self.abort(request_id)
