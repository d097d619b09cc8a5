"""OpenAI's error shape, for answers that are given before FastAPI sees the request."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.responses import Response

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
"""HTTP status → `error.type`; any other 4xx is `invalid_request_error`, any other 5xx `server_error`."""

_NULLABLE_TEXT = {"type": ["string", "null"]}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _NULLABLE_TEXT,
                "code": _NULLABLE_TEXT,
            },
        }
    },
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "content": {"application/json": {"schema": _ERROR_SCHEMA}}}
    for status, description in (("4XX", "The request is refused"), ("5XX", "The server can't answer it"))
}
"""The refusals of every endpoint in the OpenAPI document."""


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """The JSON of one error."""
    kind = ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def error_response(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """A whole answer that says what is wrong."""
    body = error_body(status, message, param=param, code=code)
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def retry_after(seconds: float) -> dict[str, str]:
    """The header that says when to come back, in whole seconds, at least 1."""
    return {"retry-after": str(max(1, math.ceil(seconds)))}
