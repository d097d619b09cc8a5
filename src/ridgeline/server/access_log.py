"""AccessLog: ASGI middleware that writes one line about every request, and never what was asked or said."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.engine.clock import Clock
from ridgeline.outputs import RequestOutput
from ridgeline.server.phase import ALWAYS_ANSWERED

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that left before its answer began."""
MAX_LOGGED_PATH = 200

_logger = logging.getLogger("ridgeline.requests")


@dataclass(slots=True)
class RequestFacts:
    """What the endpoint knows of its request; durations in seconds, None where undefined.

    A request of several prompts adds its tokens up and keeps its slowest durations.
    """

    request_id: str | None = None
    engine_request_id: str | None = None
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    num_preemptions: int | None = None
    finish_reasons: list[str] = field(default_factory=list)
    error: str | None = None

    def add(self, output: RequestOutput) -> None:
        """Take the ends and figures that an output brings; call it with every one."""
        self.finish_reasons += [str(c.finish_reason) for c in output.outputs if c.finish_reason is not None]
        metrics = output.metrics
        if not output.finished or metrics is None:
            return
        self.num_prompt_tokens = (self.num_prompt_tokens or 0) + metrics.num_prompt_tokens
        self.num_output_tokens = (self.num_output_tokens or 0) + metrics.num_output_tokens
        self.num_cached_tokens = (self.num_cached_tokens or 0) + metrics.num_cached_tokens
        self.num_preemptions = (self.num_preemptions or 0) + metrics.num_preemptions
        self.queue_s = _slowest(self.queue_s, metrics.queue_s)
        self.ttft_s = _slowest(self.ttft_s, metrics.ttft_s)
        self.tpot_s = _slowest(self.tpot_s, metrics.tpot_s)

    def fields(self) -> dict[str, object]:
        """As the log names them, durations in milliseconds."""
        return {
            "engine_request_id": self.engine_request_id,
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_output_tokens,
            "cached_tokens": self.num_cached_tokens,
            "queue_ms": _ms(self.queue_s),
            "ttft_ms": _ms(self.ttft_s),
            "tpot_ms": _ms(self.tpot_s),
            "num_preemptions": self.num_preemptions,
            "finish_reason": ",".join(sorted(set(self.finish_reasons))) or None,
            "error": self.error,
        }


class AccessLog:
    """Puts `RequestFacts` into `scope["state"]["facts"]` and logs them when the request is over.

    Probes that succeed (`/health`, `/metrics` …) are not logged. A body is logged only where `BodyLimit`
    was told to leave it in `scope["state"]["logged_body"]`.
    """

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, then log."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at_s = self._clock.now()
        scope_state = scope.setdefault("state", {})
        facts = scope_state["facts"] = RequestFacts(scope_state.get("request_id"))
        status = CLIENT_CLOSED_REQUEST

        async def send_watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_watched)
        except Exception as error:
            status, facts.error = 500, type(error).__name__
            raise
        finally:
            if status >= 400 or scope["path"] not in ALWAYS_ANSWERED:
                self._log(scope, status, facts, self._clock.now() - started_at_s)

    def _log(self, scope: Scope, status: int, facts: RequestFacts, duration_s: float) -> None:
        state = scope["state"]
        fields = {
            "request_id": facts.request_id,
            "method": scope["method"],
            "path": scope["path"][:MAX_LOGGED_PATH],
            "status": status,
            "duration_ms": _ms(duration_s),
            **facts.fields(),
            "body": state.get("logged_body"),
        }
        known = {name: value for name, value in fields.items() if value is not None}
        _logger.info("request", extra={"fields": known})


def _slowest(known: float | None, new: float | None) -> float | None:
    return new if known is None else known if new is None else max(known, new)


def _ms(seconds: float | None) -> float | None:
    return round(seconds * 1000, 3) if seconds is not None else None
