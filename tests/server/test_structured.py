"""response_format and structured_outputs over HTTP: obeyed at any temperature, or 400 with the place."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from tests.server.conftest import Served

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
MESSAGES: Any = [{"role": "user", "content": "hi"}]


def wanted(schema: dict[str, Any]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_a_schema_is_obeyed_streamed_and_not(tiny_server: Served, temperature: float) -> None:
    asked: dict[str, Any] = {
        "model": tiny_server.state.served_model_names[0],
        "messages": MESSAGES,
        "response_format": wanted(SCHEMA),
        "temperature": temperature,
        "seed": 3,
        "max_completion_tokens": 100,
    }
    choice = tiny_server.client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content or ""), SCHEMA)
    chunks = list(tiny_server.client.chat.completions.create(**asked, stream=True))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == choice.message.content
    tiny_server.assert_idle()


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ({"choice": ["é🦙 日本 🇫🇷 ﷽"]}, {"é🦙 日本 🇫🇷 ﷽"}),
        ({"regex": "a|b"}, {"a", "b"}),
        ({"grammar": 'start: "c" | "d"'}, {"c", "d"}),
        ({"json": {"const": 7}}, {"7"}),
        ({"json": '{"const": 8}'}, {"8"}),
    ],
)
def test_vllm_s_forms_are_obeyed(tiny_server: Served, form: dict[str, Any], texts: set[str]) -> None:
    model, extra = tiny_server.state.served_model_names[0], {"structured_outputs": form}
    chat = tiny_server.client.chat.completions.create(
        model=model, messages=MESSAGES, extra_body=extra, temperature=2, max_completion_tokens=80
    )
    assert chat.choices[0].message.content in texts
    raw = tiny_server.client.completions.create(
        model=model, prompt="hi", extra_body=extra, temperature=2, max_tokens=80
    )
    assert raw.choices[0].text in texts


def test_what_is_cut_says_so(tiny_server: Served) -> None:
    choice = tiny_server.client.chat.completions.create(
        model=tiny_server.state.served_model_names[0],
        messages=MESSAGES,
        response_format=wanted({"const": "a long text that is cut"}),
        max_completion_tokens=3,
    ).choices[0]
    assert choice.finish_reason == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(choice.message.content or "")


@pytest.mark.parametrize(
    ("extra", "param", "message"),
    [
        (
            {"response_format": wanted({"properties": {"x": {"uniqueItems": True}}})},
            "response_format.json_schema.schema",
            "/properties/x/uniqueItems",
        ),
        (
            {"response_format": wanted({"type": "string", "pattern": "("})},
            "response_format.json_schema.schema",
            "pattern",
        ),
        ({"response_format": wanted({"$ref": "#/nowhere"})}, "response_format.json_schema.schema", "$ref"),
        (
            {"response_format": wanted({"type": "array", "minItems": 3, "maxItems": 2})},
            "response_format.json_schema.schema",
            "minItems",
        ),
        (
            {"response_format": wanted({"$ref": "#"})},
            "response_format.json_schema.schema",
            "no value that ends",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "an object"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "unclosed group"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "is unknown"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "not both",
        ),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos", "leave it out"),
    ],
)
def test_c20_what_can_t_be_followed_is_a_400_that_names_it(
    tiny_server: Served, extra: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        tiny_server.client.chat.completions.create(
            model=tiny_server.state.served_model_names[0], messages=MESSAGES, extra_body=extra
        )
    body = caught.value.body
    assert isinstance(body, dict)
    assert (body["param"], body["type"]) == (param, "invalid_request_error")
    assert message in body["message"]
    tiny_server.assert_idle()


TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "leaf": {"enum": [0, 1]}},
    "required": ["next", "leaf"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^hello there indeed\\!$"},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
        TREE,
    ],
    ids=["pattern", "items", "recursion"],
)
def test_c20_what_is_accepted_is_obeyed(tiny_server: Served, schema: dict[str, Any], strict: bool) -> None:
    described = {"name": "answer", "schema": schema, "strict": strict}
    ended = 0
    for seed in range(8):
        choice = tiny_server.client.chat.completions.create(
            model=tiny_server.state.served_model_names[0],
            messages=MESSAGES,
            response_format={"type": "json_schema", "json_schema": described},  # type: ignore[typeddict-item]
            temperature=2,
            seed=seed,
            max_completion_tokens=120,
        ).choices[0]
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content or ""), schema)
            ended += 1
        else:
            assert choice.finish_reason == "length"
    assert ended
    tiny_server.assert_idle()


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "string", "pattern": "("}, "/pattern"),
        ({"$ref": "#/nowhere"}, "/$ref"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "/minItems"),
        ({"type": "array", "uniqueItems": True}, "/uniqueItems"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "/"),
    ],
)
def test_c20_what_is_refused_is_named_with_its_path(
    tiny_server: Served, schema: dict[str, Any], keyword: str, strict: bool
) -> None:
    described = {"name": "answer", "schema": schema, "strict": strict}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            tiny_server.client.chat.completions.create(
                model=tiny_server.state.served_model_names[0],
                messages=MESSAGES,
                response_format={"type": "json_schema", "json_schema": described},  # type: ignore[typeddict-item]
                stream=stream,
            )
        assert isinstance(caught.value.body, dict)
        assert f"'{keyword}'" in caught.value.body["message"]
    tiny_server.assert_idle()
