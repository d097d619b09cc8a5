"""A schema that can't be followed is refused with its keyword and place; one that can is obeyed."""

from __future__ import annotations

import pytest

from ridgeline.errors import RequestError
from ridgeline.grammar.compiler import GrammarCompiler
from ridgeline.structured_outputs import StructuredOutputs

IN_DEFS = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/list"}, "b": {"type": "string"}},
    "required": ["a"],
    "$defs": {"list": {"type": "array", "items": {"anyOf": [{"type": "null"}, {"uniqueItems": True}]}}},
}


@pytest.mark.parametrize(
    ("schema", "pointer", "reason"),
    [
        ({"uniqueItems": True}, "/uniqueItems", 'keyword "uniqueItems" is not supported'),
        (
            {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}},
            "/properties/x/uniqueItems",
            'keyword "uniqueItems" is not supported',
        ),
        (IN_DEFS, "/$defs/list/items/anyOf/1/uniqueItems", 'keyword "uniqueItems" is not supported'),
        ({"type": "array", "items": {"not": {}}}, "/items/not", 'keyword "not"'),
        ({"if": {}, "then": {}}, "/if", 'keyword "if"'),
        ({"properties": {"a/b~c": {"contains": {}}}}, "/properties/a~1b~0c/contains", 'keyword "contains"'),
        ({"type": "string", "pattern": "("}, "/pattern", "unclosed group"),
        ({"type": "string", "pattern": "a(?=b)"}, "/pattern", "look-ahead"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "/minItems", "greater than maxItems"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "/minimum", "greater than maximum"),
        ({"items": {"$ref": "#/nowhere"}}, "/items/$ref", "does not exist"),
        ({"$ref": "https://example.com/schema"}, "/$ref", "not present"),
        ({"properties": {"x": {"type": "text"}}}, "/properties/x/type", "Invalid type: text"),
        ({"type": "string", "format": "colour"}, "/format", "colour"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "/oneOf", "oneOf"),
        ({"enum": []}, "/enum", "Unsatisfiable"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "/allOf", "incompatible types"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "/required", "unsatisfiable"),
        ({"type": "object", "minProperties": 2}, "/minProperties", "only be kept as far as"),
    ],
)
def test_a_refusal_names_the_keyword_and_its_place(
    compiler: GrammarCompiler, schema: dict[str, object], pointer: str, reason: str
) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.compile(StructuredOutputs(json=schema))
    assert (caught.value.field, caught.value.value) == ("structured_outputs.json", pointer)
    assert reason in caught.value.remedy
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}]},
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1},
        {
            "$ref": "#/$defs/a",
            "$defs": {
                "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "required": ["b"]},
                "b": {"allOf": [{"$ref": "#/$defs/a"}]},
            },
        },
    ],
)
def test_what_never_ends_is_refused_not_looped_on(
    compiler: GrammarCompiler, schema: dict[str, object]
) -> None:
    with pytest.raises(RequestError, match="no value that ends"):
        compiler.compile(StructuredOutputs(json=schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": {"$ref": "#"}, "minItems": 1},
        {"enum": [1], "unknown keyword": 3, "x-guidance": {"whitespace_flexible": True}},
        {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"], "minProperties": 2},
    ],
)
def test_recursion_that_may_end_is_fine(compiler: GrammarCompiler, schema: dict[str, object]) -> None:
    compiler.compile(StructuredOutputs(json=schema))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"anyOf": [{"type": "null"}] * 2001}, "at most 2000 schemas"),
        ({"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(501)}}, "at most 500 different"),
        ({"allOf": [{"type": "string", "pattern": f"a{{{i}}}b"} for i in range(30)]}, "at most 16 patterns"),
        ({"type": "object", "required": [f"p{i}" for i in range(5001)]}, "at most 5000 required"),
        ({"type": "integer", "multipleOf": 999983}, "at most 20000"),
        ({"allOf": [{"type": "number", "multipleOf": m} for m in (9.97, 1009)]}, "at most 20000"),
        ({"type": "integer", "multipleOf": 10**9}, None),
        (
            {
                "$ref": "#/$defs/d0",
                "$defs": {
                    "d450": {"type": "number", "multipleOf": 2},
                    **{f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(450)},
                },
            },
            "refer to each other too often",
        ),
        ({"const": [[]]}, None),
    ],
)
def test_what_takes_too_long_to_compile_is_refused(
    compiler: GrammarCompiler, schema: dict[str, object], reason: str | None
) -> None:
    if reason is None:
        compiler.compile(StructuredOutputs(json=schema))
        return
    with pytest.raises(RequestError, match=reason):
        compiler.compile(StructuredOutputs(json=schema))


def test_deep_nesting_is_refused(compiler: GrammarCompiler) -> None:
    deep = '{"type":"array","items":' * 300 + '{"type":"null"}' + "}" * 300
    with pytest.raises(RequestError, match="recursion limit"):
        compiler.compile(StructuredOutputs(json=deep))
