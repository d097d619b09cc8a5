"""Forms and tools of the real model, in a process of its own, asked by the openai client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from tests.server.server_process import HANG_S, started

pytestmark = pytest.mark.golden

MODEL = "smollm2"
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "Weather of days to come.", "parameters": WEATHER},
    },
    {"type": "function", "function": {"name": "get_time", "description": "The time of day."}},
]
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
PARAMETERS = {"get_weather": WEATHER, "get_time": {"type": "object", "maxProperties": 0}}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    },
    "required": ["name", "age", "hobbies"],
    "additionalProperties": False,
}
TREE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer", "minimum": 0, "maximum": 99},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        }
    },
}
LINKED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "value": {"type": "string", "maxLength": 12},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    },
    "required": ["value", "next"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(model_path: Path) -> Iterator[openai.OpenAI]:
    options = ("--port", "0", "--served-model-name", MODEL, "--kv-cache-bytes", "200000000")
    with (
        started("ridgeline", "serve", str(model_path), *options) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=HANG_S) as client,
    ):
        yield client


def body(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


def following(schema: dict[str, Any]) -> dict[str, Any]:
    described = {"name": "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def streamed(client: openai.OpenAI, asked: dict[str, Any]) -> tuple[str, list[list[str]], str | None]:
    """Content, [name, arguments] of each call, finish reason."""
    content, calls, reason = "", list[list[str]](), None
    for chunk in client.chat.completions.create(**asked, stream=True):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            if call.function.name is not None:
                assert call.index == len(calls)
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments or ""
        reason = choice.finish_reason or reason
    return content, calls, reason


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("tool_choice", ["required", NAMED], ids=["required", "named"])
def test_a_forced_call_has_valid_arguments(
    client: openai.OpenAI, tool_choice: Any, temperature: float
) -> None:
    fields = {"tools": TOOLS, "tool_choice": tool_choice, "temperature": temperature, "seed": 2}
    asked = body("What will the weather be in Paris for the next 3 days?", **fields)
    choice = client.chat.completions.create(**asked).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    calls = [[call.function.name, call.function.arguments] for call in choice.message.tool_calls or []]
    assert calls
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), PARAMETERS[name])
    if tool_choice is NAMED:
        assert [name for name, _ in calls] == ["get_weather"]
    assert streamed(client, asked) == ("", calls, "tool_calls")


def test_the_result_of_a_call_is_taken_up(client: openai.OpenAI) -> None:
    asked = body("What time is it?", tools=TOOLS[1:], tool_choice="required", parallel_tool_calls=False)
    message = client.chat.completions.create(**asked).choices[0].message
    (call,) = message.tool_calls or []
    asked["messages"] += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "It is 16:45."},
    ]
    asked |= {"tool_choice": "none", "temperature": 0, "max_completion_tokens": 30}
    assert "16:45" in (client.chat.completions.create(**asked).choices[0].message.content or "")


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_a_schema_is_obeyed(client: openai.OpenAI, temperature: float) -> None:
    fields = {**following(PERSON), "temperature": temperature, "seed": 7}
    asked = body("Tell me about Bob, who is 42 and likes chess.", **fields)
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content or ""), PERSON)
    assert streamed(client, asked) == (choice.message.content, [], "stop")


@pytest.mark.parametrize(
    ("schema", "question", "ends", "nested"),
    [
        (TREE, "Write a binary tree of numbers as JSON.", ("]", "]}"), '"children":[{'),
        (LINKED, "Write a linked list of three fruits as JSON.", ("null",), '"next":{'),
    ],
    ids=["tree", "linked list"],
)
def test_recursion_is_followed(
    client: openai.OpenAI, schema: dict[str, Any], question: str, ends: tuple[str, ...], nested: str
) -> None:
    """The small model would rather go on: a bias for the tokens that end makes some answers end, nested."""
    token_ids = [token_id for text in ends for token_id in tokens(client, text)]
    for bias, seed in [(bias, seed) for seed in range(20) for bias in (3, 4)]:
        asked = body(question, **following(schema), temperature=1, seed=seed, max_completion_tokens=200)
        asked["logit_bias"] = {str(token_id): bias for token_id in token_ids}
        choice = client.chat.completions.create(**asked).choices[0]
        text = choice.message.content or ""
        if choice.finish_reason == "length":
            assert nested in text
            continue
        jsonschema.validate(json.loads(text), schema)
        if nested in text:
            return
    raise AssertionError("no answer both went on and ended")


def tokens(client: openai.OpenAI, text: str) -> list[int]:
    url = str(client.base_url).removesuffix("/v1/") + "/tokenize"
    answer = client.post(url, cast_to=object, body={"prompt": text, "add_special_tokens": False})
    assert isinstance(answer, dict)
    (token_id,) = answer["tokens"]
    return [token_id]


def test_c01_streams_with_grammars_of_their_own_equal_their_lone_runs(client: openai.OpenAI) -> None:
    weather = {"tools": TOOLS, "tool_choice": NAMED}
    asked = [
        body("Tell me about Bob, as JSON.", **following(PERSON), temperature=1.2, seed=1),
        body("Weather in Rome?", **weather, temperature=1.2, seed=2),
        body("Write a list.", **following(LINKED), temperature=0, max_completion_tokens=60),
        body("Why is the sky blue?", temperature=1.2, seed=3, max_completion_tokens=60),
    ]
    alone = [streamed(client, one) for one in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        together = list(pool.map(lambda one: streamed(client, one), asked))
    assert together == alone
    assert len({str(answer) for answer in alone}) == len(asked)
