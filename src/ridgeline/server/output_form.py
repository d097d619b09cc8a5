"""The form that a body asks of the text: OpenAI's `response_format`, vLLM's `structured_outputs`."""

from __future__ import annotations

from typing import Any

from ridgeline.errors import RequestError
from ridgeline.structured_outputs import StructuredOutputs

_KEYS = ("json", "regex", "choice", "grammar")
_SCHEMA = "response_format.json_schema.schema"


def output_form(
    response_format: dict[str, Any] | None, structured_outputs: dict[str, Any] | None
) -> StructuredOutputs | None:
    """The form asked for, None for free text; vLLM's `json_object: true` is `json: true`.

    Raises:
        RequestError: both are given, or one is malformed; names the field.
    """
    of_format = _of_response_format(response_format) if response_format is not None else None
    if structured_outputs is None:
        return of_format
    if of_format is not None:
        raise RequestError("structured_outputs", structured_outputs, "give it or response_format, not both")
    given = {key: value for key, value in structured_outputs.items() if value is not None}
    if given.pop("json_object", None) is True:
        given.setdefault("json", True)
    for key, value in given.items():
        if key not in _KEYS:
            known = ", ".join((*_KEYS, "json_object"))
            raise RequestError(f"structured_outputs.{key}", value, f"is unknown; there are: {known}")
    return StructuredOutputs(**given)


def renamed(error: RequestError, response_format: dict[str, Any] | None) -> RequestError:
    """The error under the name of the field that the caller wrote."""
    if response_format is None or not error.field.startswith("structured_outputs"):
        return error
    field = _SCHEMA if error.field == "structured_outputs.json" else "response_format"
    return error.renamed(field)


def _of_response_format(response_format: dict[str, Any]) -> StructuredOutputs | None:
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputs(json=True)
    if kind != "json_schema":
        raise RequestError("response_format.type", kind, "must be text, json_object or json_schema")
    # The Responses API writes the schema beside the type.
    described = response_format.get("json_schema", response_format)
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise RequestError(_SCHEMA, schema, "must be a JSON Schema: an object")
    try:
        return StructuredOutputs(json=schema)
    except RequestError as error:
        raise error.renamed(_SCHEMA) from None
