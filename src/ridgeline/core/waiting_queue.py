"""WaitingQueue: requests that wait, most urgent first."""

from __future__ import annotations

import heapq

from ridgeline.core.request import Request


class WaitingQueue:
    """A heap by `Request.queue_key`; push, pop and discard cost O(log n)."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, int], Request]] = []
        self._requests: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def push(self, request: Request) -> None:
        """Let a request wait."""
        assert request.request_id not in self._requests
        self._requests[request.request_id] = request
        heapq.heappush(self._heap, (request.queue_key, request))

    def pop(self) -> Request:
        """Take the most urgent request out."""
        while True:
            _, request = heapq.heappop(self._heap)
            if self._requests.get(request.request_id) is request:
                del self._requests[request.request_id]
                return request

    def first(self) -> Request | None:
        """The most urgent request, which goes on waiting; None: nobody waits."""
        while self._heap:
            request = self._heap[0][1]
            if self._requests.get(request.request_id) is request:
                return request
            heapq.heappop(self._heap)
        return None

    def discard(self, request: Request) -> None:
        """Take a request out wherever it is; its heap entry goes when it surfaces, or with many others."""
        del self._requests[request.request_id]
        if len(self._heap) > 2 * len(self._requests) + 64:
            self._heap = [(waiting.queue_key, waiting) for waiting in self._requests.values()]
            heapq.heapify(self._heap)

    def requests(self) -> list[Request]:
        """All waiting requests, in no order."""
        return list(self._requests.values())
