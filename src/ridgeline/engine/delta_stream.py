"""DeltaStream: what the engine's thread made, read at the client's pace."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from ridgeline.outputs import RequestOutput

MAX_PENDING_DELTAS = 16
"""Deltas of one request that wait singly; what comes later is merged into the last."""


class DeltaStream:
    """Deltas of the requests of one call. Used in the event loop's thread only.

    The engine never waits for a reader: memory is bounded by merging what is not read. `on_merged` is told
    of each merged delta that the reader takes.
    """

    def __init__(
        self, request_ids: Collection[str], on_merged: Callable[[RequestOutput], None] | None = None
    ) -> None:
        self.unfinished = set(request_ids)
        self._on_merged = on_merged
        self._merged: dict[int, RequestOutput] = {}
        self._max_pending = MAX_PENDING_DELTAS * len(request_ids)
        self._pending: deque[RequestOutput] = deque()
        self._error: Exception | None = None
        self._is_accepted = False
        self._waiter: asyncio.Future[None] | None = None

    def accept(self) -> None:
        """The engine has taken all requests."""
        self._is_accepted = True
        self._wake()

    def push(self, delta: RequestOutput) -> None:
        """Append a delta; wake the reader."""
        if delta.finished:
            self.unfinished.discard(delta.request_id)
        if len(self._pending) >= self._max_pending:
            for pending in reversed(self._pending):
                if pending.request_id == delta.request_id:
                    pending.extend(delta)
                    self._merged[id(pending)] = pending
                    return
        self._pending.append(delta)
        self._wake()

    def fail(self, error: Exception) -> None:
        """Nothing more will come; the reader gets `error` after what is pending."""
        self._error = error
        self.unfinished.clear()
        self._wake()

    async def accepted(self) -> None:
        """Wait until the engine has taken the requests.

        Raises:
            RequestError, EngineError: it did not.
        """
        while not self._is_accepted:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def take(self) -> list[RequestOutput]:
        """All pending deltas, at least one; empty at the end.

        Raises:
            EngineError: the requests were lost by our fault.
        """
        while not self._pending:
            if self._error is not None:
                raise self._error
            if not self.unfinished:
                return []
            await self._wait()
        taken = list(self._pending)
        self._pending.clear()
        merged, self._merged = self._merged, {}
        if self._on_merged is not None:
            for delta in merged.values():
                self._on_merged(delta)
        return taken

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
