"""JSON bodies as typed requests; what is wrong with one is told by its field."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, TypeVar

import msgspec

from ridgeline.errors import RequestError

IGNORED_FIELDS = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_obfuscation",
        "user",
        "verbosity",
    }
)
"""Fields of OpenAI's API that change nothing here; they are no mistake."""

_T = TypeVar("_T", bound=msgspec.Struct)
_PLACE = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)


class Body(NamedTuple):
    """A parsed body: the object of the request's type, and the fields that this type does not know."""

    fields: Any
    unknown: list[str]


def parse_body(body: bytes, kind: type[_T], *, strict: bool) -> Body:
    """Decode and check a body.

    Raises:
        RequestError: it is no JSON object, a field has a wrong type, or, if `strict`, an unknown name.
    """
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError("body", _shown(body), f"is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise RequestError("body", _shown(body), "must be a JSON object")
    unknown = sorted(set(document) - set(kind.__struct_fields__) - IGNORED_FIELDS)
    if unknown and strict:
        raise RequestError(unknown[0], document[unknown[0]], "is no field of this endpoint")
    try:
        return Body(msgspec.convert(document, kind), unknown)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _of_field(error, document) from None


def warning_headers(unknown: list[str]) -> dict[str, str]:
    """The header that lists ignored fields; none where all are known."""
    if not unknown:
        return {}
    names = ", ".join(name.encode("ascii", "backslashreplace").decode()[:64] for name in unknown[:20])
    return {"x-ridgeline-warning": re.sub(r"[^\x20-\x7e]", "?", f"ignored unknown fields: {names}")}


def _of_field(error: Exception, document: dict[str, object]) -> RequestError:
    match = _PLACE.fullmatch(str(error))
    if match is None:
        missing = re.search(r"missing required field `(.+?)`", str(error))
        return RequestError(missing.group(1) if missing else "body", None, str(error))
    remedy, place = match.groups()
    name = re.split(r"[.\[]", place, maxsplit=1)[0]
    # A place such as `[...]` stands for any key of a mapping.
    return RequestError(place if "..." not in place else name, document.get(name), remedy)


def _shown(body: bytes) -> str:
    return body[:40].decode(errors="replace")
