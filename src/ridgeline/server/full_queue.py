"""FullQueueGate: 429 for work that cannot be taken now, before its body is parsed."""

from __future__ import annotations

from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from ridgeline.engine.clock import Clock
from ridgeline.errors import OverloadedError
from ridgeline.server.admission import Admission
from ridgeline.server.errors import rejection_reason, response_of


class FullQueueGate:
    """ASGI middleware: refuses POSTs to `paths` unparsed while no place is free at all.

    Under overload most requests end here, and what they cost is taken from those that run. `Admission`
    still decides on what passes: a place may be free, but not for all sequences of a request.
    `rejected` counts refusals, by their reason.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        admission: Admission,
        clock: Clock,
        paths: Collection[str],
        rejected: Callable[[str], None],
    ) -> None:
        self._app = app
        self._admission = admission
        self._clock = clock
        self._paths = frozenset(paths)
        self._rejected = rejected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._paths:
            try:
                self._admission.check_room(1, self._clock.now())
            except OverloadedError as error:
                reason = rejection_reason(error)
                assert reason is not None
                self._rejected(reason)
                await response_of(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)
