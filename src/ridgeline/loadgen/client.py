"""Sends one request and records what its client sees, whatever the server does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.loadgen.http_client import ConnectionFailedError, HttpClient, HttpRequest, NotHttpError
from ridgeline.loadgen.stream import AnswerStream
from ridgeline.metrics.client_record import ClientRecord, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request made ready before the run, so that making it costs nothing within."""

    request_id: str
    body: bytes
    num_prompt_tokens: int | None = None
    num_output_tokens: int | None = None
    slos_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where requests go: path below the server's root, headers, and how long one may take in all."""

    path: str
    is_chat: bool
    headers: Mapping[str, str]
    timeout_s: float


class LoadClient:
    """Sends prepared requests to one endpoint."""

    def __init__(self, http: HttpClient, endpoint: Endpoint) -> None:
        self._http = http
        self._endpoint = endpoint

    async def send(self, request: PreparedRequest, scheduled_at_s: float) -> ClientRecord:
        """The record of one request, stamped on the loop's clock; never raises, a cancel included."""
        loop = asyncio.get_running_loop()
        sent_at_s = loop.time()
        stream = AnswerStream(is_chat=self._endpoint.is_chat)
        failure = await self._exchange(request, stream)
        closed_at_s = loop.time()
        if failure is None:
            stream.end(stream.last_event_at_s if stream.is_done and stream.last_event_at_s else closed_at_s)
            outcome, error = stream.outcome, stream.error
            closed_at_s = stream.last_event_at_s if stream.is_done and stream.last_event_at_s else closed_at_s
        else:
            outcome, error = failure
        assert outcome is not None
        return _record(
            request,
            stream,
            instants=(scheduled_at_s, sent_at_s, closed_at_s),
            outcome=outcome,
            is_whole=failure is None,
            error=error,
        )

    async def _exchange(
        self, request: PreparedRequest, stream: AnswerStream
    ) -> tuple[Outcome, str | None] | None:
        """Send and read; None when the answer ended in order, else how it failed."""
        endpoint = self._endpoint
        http_request = HttpRequest(
            "POST", endpoint.path, {**endpoint.headers, "x-request-id": request.request_id}, request.body
        )
        try:
            async with asyncio.timeout(endpoint.timeout_s):
                await self._http.send(http_request, stream)
        except TimeoutError:
            return Outcome.TIMEOUT, f"no end within {endpoint.timeout_s:g} s"
        except asyncio.CancelledError:
            return Outcome.ABORTED, "the run was stopped"
        except NotHttpError as error:
            return Outcome.MALFORMED_STREAM, str(error)
        except ConnectionFailedError as error:
            if not error.has_body:
                return Outcome.CONNECTION, str(error)
            stream.end(asyncio.get_running_loop().time(), broken=str(error))
            assert stream.outcome is not None
            return stream.outcome, stream.error
        return None


def _record(
    request: PreparedRequest,
    stream: AnswerStream,
    *,
    instants: tuple[float, float, float],
    outcome: Outcome,
    is_whole: bool,
    error: str | None,
) -> ClientRecord:
    scheduled_at_s, sent_at_s, closed_at_s = instants
    details = stream.usage.get("prompt_tokens_details")
    return ClientRecord(
        request_id=request.request_id,
        scheduled_at_s=scheduled_at_s,
        sent_at_s=sent_at_s,
        chunks=stream.chunks,
        outcome=outcome,
        empty_at_s=stream.empty_at_s,
        last_event_at_s=stream.last_event_at_s,
        closed_at_s=closed_at_s,
        has_chunk_tokens=stream.has_chunk_tokens,
        has_whole_stream=is_whole and stream.is_event_stream and outcome is not Outcome.MALFORMED_STREAM,
        num_requested_prompt_tokens=request.num_prompt_tokens,
        num_requested_output_tokens=request.num_output_tokens,
        num_prompt_tokens=_count(stream.usage.get("prompt_tokens")),
        num_output_tokens=_count(stream.usage.get("completion_tokens")),
        num_cached_tokens=_count(details.get("cached_tokens")) if isinstance(details, dict) else None,
        finish_reason=stream.finish_reason,
        text=stream.text,
        error=error,
        slos_s=request.slos_s,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
