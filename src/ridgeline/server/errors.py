"""What an error becomes in HTTP: one table from our tree to a status, in OpenAI's shape."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ridgeline.errors import ContextLengthError, EngineError, OverloadedError, RequestError, RidgelineError
from ridgeline.server.admission import TooManySequencesError
from ridgeline.server.error_response import error_body, error_response, retry_after

_PARAMS = {"prompt_token_ids": "prompt"}


class UnknownModelError(RequestError):
    """The request names a model that is not served here."""


class FormFailedError(RequestError):
    """The form that was asked for grew too complex while the text was made."""


_REASONS = (
    (OverloadedError, "queue_full"),
    (ContextLengthError, "too_long"),
    (TooManySequencesError, "too_many_sequences"),
    (UnknownModelError, "unknown_model"),
    (RequestError, "bad_request"),
)
"""Kinds of error, the special before the general, and the `reason` of their rejections in /metrics."""


def status_of(error: Exception) -> int:
    """404, 400, 429 for what the caller can mend; 500 for the rest."""
    if isinstance(error, UnknownModelError):
        return 404
    if isinstance(error, RequestError):
        return 400
    return 429 if isinstance(error, OverloadedError) else 500


def rejection_reason(error: RidgelineError) -> str | None:
    """Why a request was refused, as /metrics has it; None for a fault of ours, which is no refusal."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), None)


def response_of(error: Exception) -> Response:
    """The whole answer for an error that came before anything was sent."""
    status = status_of(error)
    headers = retry_after(error.retry_after_s) if isinstance(error, OverloadedError) else None
    return error_response(status, message_of(error), param=_param(error), code=_code(error), headers=headers)


def event_of(error: Exception) -> bytes:
    """The event for an error that came amid a stream."""
    body = error_body(status_of(error), message_of(error), param=_param(error), code=_code(error))
    return b"data: " + body + b"\n\n"


def install_error_handlers(app: FastAPI) -> None:
    """Give every error of `app` OpenAI's shape, unknown paths and methods too."""

    async def on_ridgeline_error(_: Request, error: Exception) -> Response:
        return response_of(error)

    async def on_http_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        return error_response(error.status_code, str(error.detail), headers=headers)

    async def on_bad_query(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        param = str(first["loc"][-1])
        return error_response(400, f"{param}={first['input']!r} {first['msg']}", param=param)

    async def on_own_fault(_: Request, error: Exception) -> Response:
        return response_of(error)

    app.add_exception_handler(RidgelineError, on_ridgeline_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_bad_query)
    # Starlette raises what it handled so once more, so that it is logged.
    app.add_exception_handler(Exception, on_own_fault)


def message_of(error: Exception) -> str:
    """What a client is told; nothing of an error that is none of ours."""
    return str(error) if isinstance(error, RidgelineError) else "internal error"


def _param(error: Exception) -> str | None:
    return _PARAMS.get(error.field, error.field) if isinstance(error, RequestError) else None


def _code(error: Exception) -> str | None:
    if isinstance(error, UnknownModelError):
        return "model_not_found"
    if isinstance(error, FormFailedError):
        return "form_failed"
    if isinstance(error, ContextLengthError):
        return "context_length_exceeded"
    if isinstance(error, OverloadedError):
        return "overloaded"
    return "engine_error" if isinstance(error, EngineError) else None
