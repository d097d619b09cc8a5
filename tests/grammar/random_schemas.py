"""Random JSON Schemas of every kind that is taken, and a validator that reads them by the letter."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import jsonschema
from hypothesis import strategies as st

NAMES = st.one_of(
    st.sampled_from(["a", "b", '"q"', "\\", "\n", "", "a/b", "~0", "$ref", "é", "🦙"]),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=6),
)
TEXTS = st.one_of(
    st.sampled_from(["", '"', "\\", "\n\t", "\x00", "\x7f", "\u2028", "é🦙", "<|im_end|>", " lead"]),
    st.text(st.characters(codec="utf-8"), max_size=6),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.sampled_from([0.5, -1.5, 1e-7, 1e10, -0.0, 99.99]),
    TEXTS,
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(NAMES, inner, max_size=2))
)
PATTERNS = st.sampled_from(
    [
        *("^[a-c]{1,4}\\d$", "x+y", "^\\d{3}-\\d{4}$", "^(foo|bar)+$", "[é-ü]{2}", "^\\S{1,3}$", "^.{2,5}$"),
        *('^[^"]*$', "^[^\\\\]{1,3}$", '^[^"\\\\]{0,4}$', '^[^<>"]+$', "^[^-a]{2}$", "^([^,]*,){2}$", "\\D"),
        *("^[\\x00-\\x1f]$", "^[\\x08-\\x0d]{2}$", "^(a|b|)$", "^$", "[0-9a-fA-F]{4}"),
    ]
)
FORMATS = st.sampled_from(["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname"])
BOUNDS = st.sampled_from([0, 1, -1, 5, -5, 10, 0.5, -0.5, 1.25, 99.99, -100])


@st.composite
def integers(draw: st.DrawFn) -> dict[str, object]:
    low = draw(st.integers(-1000, 1000))
    schema: dict[str, object] = {
        "type": "integer",
        draw(st.sampled_from(["minimum", "exclusiveMinimum"])): low,
    }
    schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = low + draw(st.integers(2, 500))
    if draw(st.booleans()):
        schema["multipleOf"] = draw(st.sampled_from([1, 2]))
    return schema


@st.composite
def numbers(draw: st.DrawFn) -> dict[str, object]:
    low = draw(BOUNDS)
    schema: dict[str, object] = {
        "type": "number",
        draw(st.sampled_from(["minimum", "exclusiveMinimum"])): low,
    }
    schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = low + draw(
        st.sampled_from([0.5, 1, 2, 50])
    )
    if draw(st.integers(0, 3)) == 0:
        schema["multipleOf"] = draw(st.sampled_from([0.5, 0.25, 0.01]))
    return schema


@st.composite
def strings(draw: st.DrawFn) -> dict[str, object]:
    least = draw(st.integers(0, 3))
    sizes = {"minLength": least, "maxLength": least + draw(st.integers(0, 6))}
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return {"type": "string", "pattern": draw(PATTERNS), "maxLength": draw(st.integers(4, 9))}
    return {"type": "string", "format": draw(FORMATS)} if kind == 1 else {"type": "string", **sizes}


LEAVES = st.one_of(
    integers(),
    numbers(),
    strings(),
    st.sampled_from([{"type": "null"}, {"type": "boolean"}]),
    st.just({"type": ["integer", "null"], "maximum": 9, "minimum": 0}),
    st.sampled_from([{"$ref": "#/$defs/shared"}, {"$ref": "#/$defs/list"}]),
    st.lists(VALUES, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    VALUES.map(lambda value: {"const": value}),
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, object]]) -> dict[str, object]:
    properties = draw(st.dictionaries(NAMES, inner, max_size=3))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    more = draw(st.sampled_from([False, False, {"type": "null"}]))
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": more}
    if more:
        schema["maxProperties"] = len(properties) + 1
    return schema


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, object]]) -> dict[str, object]:
    least = draw(st.integers(0, 2))
    first = draw(st.lists(inner, max_size=1))
    schema = {"type": "array", "items": draw(inner), "minItems": least, "maxItems": least + 1}
    return {**schema, "prefixItems": first} if first else schema


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        objects(inner),
        arrays(inner),
        st.lists(inner, min_size=1, max_size=2).map(lambda some: {"anyOf": some}),
        inner.map(lambda one: {"allOf": [one]}),
        inner.map(lambda one: {"oneOf": [one]}),
    ),
    max_leaves=5,
)


@st.composite
def whole_schemas(draw: st.DrawFn) -> dict[str, object]:
    """A schema with what it may refer to: a leaf, and a list that goes on in itself."""
    shared = draw(st.one_of(integers(), strings()))
    link = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]}
    linked = {
        "type": "object",
        "properties": {"next": link, "value": {"$ref": "#/$defs/shared"}},
        "required": ["next"],
        "additionalProperties": False,
    }
    return {**draw(SCHEMAS), "$defs": {"shared": shared, "list": linked}}


def _multiple_of(_: object, factor: float, value: Any, __: object) -> Iterator[jsonschema.ValidationError]:
    """By decimal digits: as a binary fraction 0.57 is no multiple of 0.01."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and Decimal(repr(value)) % Decimal(repr(factor)):
        yield jsonschema.ValidationError(f"{value} is no multiple of {factor}")


def _pattern(_: object, pattern: str, value: Any, __: object) -> Iterator[jsonschema.ValidationError]:
    """With `\\d`, `\\w` of ECMA 262: ASCII."""
    if isinstance(value, str) and not re.search(pattern, value, re.ASCII):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


_Validator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator, {"multipleOf": _multiple_of, "pattern": _pattern}
)


def check(schema: Mapping[str, object], text: str) -> None:
    """`text` is JSON, valid by `schema`, and has no space outside strings."""
    _Validator(schema).validate(json.loads(text))
    assert not re.search(r"\s", re.sub(r'"(\\.|[^"\\])*"', "", text)), text
