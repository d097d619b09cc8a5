"""RequestStreams: many requests through one engine, each with an inbox of its own."""

from __future__ import annotations

import itertools
from collections import deque

from ridgeline.engine.engine import Engine
from ridgeline.engine.input_processor import InputProcessor, ParsedPrompt
from ridgeline.engine.output_processor import OutputProcessor
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

    def add(self, prompt: ParsedPrompt, params: SamplingParams, *, arrived_at_s: float) -> str:
        """Queue one prompt's requests; returns the id that `next_delta` and `abort` take.

        Raises:
            RequestError: the request can't be served; nothing was queued.
        """
        request_id = next(self._request_ids)
        requests = self._input_processor.make_requests(
            prompt, params, request_id=request_id, arrived_at_s=arrived_at_s
        )
        for request in requests:
            self._engine.add_request(request)
        self._output_processor.add(request_id, prompt.text, requests)
        self._inboxes[request_id] = deque()
        return request_id

    def next_delta(self, request_id: str) -> RequestOutput:
        """Step the engine until the request has something new; the last delta is `finished`."""
        inbox = self._inboxes[request_id]
        while not inbox:
            self.step()
        delta = inbox.popleft()
        if delta.finished:
            del self._inboxes[request_id]
        return delta

    def step(self) -> None:
        """Run one engine step and sort what it gave."""
        for delta in self._output_processor.process(self._engine.step()):
            self._inboxes[delta.request_id].append(delta)

    def abort(self, request_id: str) -> None:
        """End a request and forget its deltas; nothing happens when it is over."""
        if self._inboxes.pop(request_id, None) is not None:
            self._output_processor.abort(request_id)
