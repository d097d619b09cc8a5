"""EventStream: server-sent events of one call, one write for whatever the engine has new."""

from __future__ import annotations

from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ridgeline.errors import RidgelineError
from ridgeline.outputs import RequestOutput
from ridgeline.server.call import Call, ClientGoneError, while_connected

DONE = b"data: [DONE]\n\n"


class StreamForm(Protocol):
    """How one endpoint writes its stream."""

    def first_events(self) -> bytes:
        """What precedes all tokens."""
        ...

    def events(self, delta: RequestOutput) -> bytes:
        """The events of one delta."""
        ...

    def last_events(self) -> bytes:
        """What follows all tokens, without the end mark."""
        ...

    def error_events(self, error: Exception) -> bytes:
        """What follows the tokens so far when the engine or we fail."""
        ...


class EventStream(Response):
    """Sends a started call's deltas; the call is closed at the end, and when the client goes away."""

    media_type = "text/event-stream"

    def __init__(
        self, call: Call, form: StreamForm, headers: dict[str, str], *, end_mark: bytes = DONE
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        # The base class counts its empty body.
        del self.headers["content-length"]
        self._call = call
        self._form = form
        self._end_mark = end_mark

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until the call ends."""
        del scope
        try:
            await while_connected(receive, self._write(send))
        except ClientGoneError:
            return
        finally:
            self._call.close()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        chunk, form = self._form.first_events(), self._form
        fault: Exception | None = None
        try:
            while deltas := await self._call.take():
                await _send_body(send, chunk + b"".join(map(form.events, deltas)))
                chunk = b""
            chunk += form.last_events() + self._end_mark
        except RidgelineError as error:
            chunk += form.error_events(error) + self._end_mark
        except Exception as error:  # noqa: BLE001 - raised again, once the client knows
            fault = error
            chunk += form.error_events(error) + self._end_mark
        self._call.close()  # who reads the end finds the places free
        await _send_body(send, chunk)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        if fault is not None:
            raise fault


async def _send_body(send: Send, body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
