"""StructuredOutputs: exactly one form, of the right type, frozen; and what it can't be joined with."""

from __future__ import annotations

import pytest

from ridgeline import RequestError, SamplingParams, StructuredOutputs


@pytest.mark.parametrize("given", [{}, {"regex": "a", "grammar": "b"}, {"json": {}, "choice": ["a"]}])
def test_exactly_one_form_is_given(given: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="exactly one of json, regex, choice, grammar") as caught:
        StructuredOutputs(**given)  # type: ignore[arg-type]
    assert caught.value.field == "structured_outputs"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"json": "{"}, "json"),
        ({"json": "[1]"}, "json"),
        ({"json": False}, "json"),
        ({"json": 3}, "json"),
        ({"json": {"const": float("nan")}}, "json"),
        ({"json": {"const": {1, 2}}}, "json"),
        ({"json": "[" * 100_000}, "json"),
        ({"json": {"const": "x" * 2**20}}, "json"),
        ({"regex": ""}, "regex"),
        ({"regex": 3}, "regex"),
        ({"choice": []}, "choice"),
        ({"choice": "yes"}, "choice"),
        ({"choice": ["yes", ""]}, "choice"),
        ({"choice": ["yes", 3]}, "choice"),
        ({"choice": ["x" * 2**20, "y"]}, "choice"),
        ({"grammar": ""}, "grammar"),
    ],
)
def test_what_is_no_form_is_refused_by_name(given: dict[str, object], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        StructuredOutputs(**given)  # type: ignore[arg-type]
    assert caught.value.field == f"structured_outputs.{field}"


def test_one_schema_is_one_form_however_it_is_written() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    wanted = StructuredOutputs(json=schema)
    assert wanted == StructuredOutputs(json='{"type": "object",\n "properties": {"b": {}, "a": {}}}')
    assert hash(wanted) == hash(StructuredOutputs(json=wanted.content))
    schema["type"] = "array"
    assert '"b":{},"a":{}' in wanted.content
    assert wanted.kind == "json"
    assert "array" not in wanted.content
    assert StructuredOutputs(json=True).content == '{"type":"object"}'
    assert StructuredOutputs(choice=["a", "b"]).content == "a\nb"


@pytest.mark.parametrize(("field", "value"), [("ignore_eos", True), ("min_tokens", 3)])
def test_the_form_alone_says_where_the_text_ends(field: str, value: object) -> None:
    with pytest.raises(RequestError, match="the form alone says where the text ends") as caught:
        SamplingParams(structured_outputs=StructuredOutputs(regex="a"), **{field: value})
    assert caught.value.field == field
    with pytest.raises(RequestError, match="must be StructuredOutputs"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]
