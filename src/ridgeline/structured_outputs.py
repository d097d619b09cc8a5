"""StructuredOutputs: the form that a text must have, in vLLM's names; ToolCallForm: that of tool calls."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ridgeline.errors import RequestError

MAX_GRAMMAR_CHARS = 2**20
"""Longest schema, expression, grammar or list of choices, in characters."""

ANY_OBJECT = '{"type":"object"}'
"""The schema of any JSON object."""

_KINDS = ("json", "regex", "choice", "grammar")


@dataclass(frozen=True, kw_only=True)
class StructuredOutputs:
    """What form the text must have: exactly one of the four is given.

    Whether it can be followed is found out where a request arrives: docs/structured-output.md.

    Raises:
        RequestError: none or several are given, or one is of the wrong type; names the field.
    """

    json: str | Mapping[str, object] | bool | None = None
    """A JSON Schema, as an object or its text; True asks for any JSON object. Kept as text."""
    regex: str | None = None
    """A regular expression that the whole text matches; no look-around, no back-references."""
    choice: Sequence[str] | None = None
    """The text is one of these."""
    grammar: str | None = None
    """A context-free grammar: llguidance's dialect of Lark, or GBNF."""

    def __post_init__(self) -> None:
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise RequestError("structured_outputs", given, f"give exactly one of {', '.join(_KINDS)}")
        field = f"structured_outputs.{given[0]}"
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json, field))
        elif self.choice is not None:
            object.__setattr__(self, "choice", _checked_choice(self.choice, field))
        for text in (self.regex, self.grammar):
            if text is not None and (not isinstance(text, str) or not text):
                raise RequestError(field, text, "must be text, not empty")
        _check_utf8(field, self.content)
        num_chars = sum(map(len, self.choice or (self.content,)))
        if num_chars > MAX_GRAMMAR_CHARS:
            remedy = f"must be at most {MAX_GRAMMAR_CHARS} characters"
            raise RequestError(field, f"{num_chars} characters", remedy)

    @property
    def kind(self) -> str:
        """Which of the four is given."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @property
    def content(self) -> str:
        """The schema, expression or grammar as text; the choices one a line."""
        return "\n".join(self.choice) if self.choice is not None else str(getattr(self, self.kind))


class ToolFrame(NamedTuple):
    """How a call of one tool is written: `before`, arguments by `schema` (as text), `behind`.

    `field` names the schema in a refusal.
    """

    field: str
    before: str
    schema: str
    behind: str


@dataclass(frozen=True, kw_only=True)
class ToolCallForm:
    """A text that is one tool call, or up to `max_calls` with `separator` between them.

    With `allows_text` it may also be, or begin with, any text without `opening`. With `answer`, a JSON
    Schema as text, it may be such a document instead.
    """

    frames: tuple[ToolFrame, ...]
    separator: str
    max_calls: int = 1
    allows_text: bool = False
    opening: str = ""
    answer: str | None = None


def _schema_text(schema: object, field: str) -> str:
    """A schema as text, keys in the writer's order: properties are generated in that order."""
    if schema is True:
        return ANY_OBJECT
    if isinstance(schema, str):
        try:
            schema = json_text.loads(schema)
        except (ValueError, RecursionError) as error:
            raise RequestError(field, schema, f"must be a JSON Schema: {error}") from None
    if not isinstance(schema, Mapping):
        raise RequestError(field, schema, "must be a JSON Schema: an object, its text, or true (any object)")
    try:
        return json_text.dumps(dict(schema), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(field, schema, f"must hold JSON values only: {error}") from None


def _check_utf8(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(field, text[error.start], "is half a surrogate pair, no character") from None


def _checked_choice(choice: object, field: str) -> tuple[str, ...]:
    if isinstance(choice, str | bytes) or not isinstance(choice, Sequence) or not choice:
        raise RequestError(field, choice, "must be a list of at least one text")
    for text in choice:
        if not isinstance(text, str) or not text:
            raise RequestError(field, text, "every choice must be text, not empty")
    return tuple(choice)
