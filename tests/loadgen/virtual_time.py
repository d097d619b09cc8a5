"""An event loop whose clock jumps from timer to timer: runs of any length, exact and at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list:
        assert timeout is not None, "nothing is left to wait for"
        self.now_s += max(timeout, 0.0)
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_virtually(work: Coroutine[Any, Any, Any]) -> Any:
    """What `work` returns, its sleeps taking no time."""
    loop = _VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


async def sleep_until(at_s: float) -> None:
    """Sleep by the virtual clock."""
    await asyncio.sleep(max(at_s - asyncio.get_running_loop().time(), 0.0))
