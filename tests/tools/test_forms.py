"""Required, named and strict calls: the grammar makes what the parser reads, at any temperature."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from ridgeline import LLM, RequestError, SamplingParams
from ridgeline.outputs import FinishReason
from ridgeline.tools.definitions import ToolChoice, parse_tool_choice
from ridgeline.tools.formats import TOOL_FORMATS
from ridgeline.tools.forms import tool_call_form
from ridgeline.tools.parser import ToolCallParser

ADD = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 9},
        "b": {"$ref": "#/$defs/digit"},
        "note": {"type": "string", "maxLength": 6},
    },
    "required": ["a", "b", "note"],
    "additionalProperties": False,
    "$defs": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}},
}
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": ADD}},
    {"type": "function", "function": {"name": "ping"}},
]


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with LLM(str(tiny_model), kv_cache_bytes=2**22) as llm:
        yield llm


def calls_of(llm: LLM, choice: ToolChoice, format_name: str, **params: object) -> list[tuple[str, str]]:
    form = tool_call_form(choice, TOOL_FORMATS[format_name])
    sampling = SamplingParams(structured_outputs=form, max_tokens=240, **params)  # type: ignore[arg-type]
    (output,) = llm.generate({"prompt_token_ids": [65, 66]}, sampling)
    completion = output.outputs[0]
    parser = ToolCallParser(TOOL_FORMATS[format_name], [tool.name for tool in choice.tools])
    whole = parser.push(completion.text)
    rest = parser.finish()
    calls = [(call.name or "", call.arguments) for call in (*whole.calls, *rest.calls)]
    if completion.finish_reason is FinishReason.STOP:
        assert whole.content + rest.content == ""
        for name, arguments in calls:
            schema = ADD if name == "add" else {"const": {}}
            jsonschema.Draft202012Validator(schema).validate(json.loads(arguments))
    return calls


@pytest.mark.parametrize("format_name", list(TOOL_FORMATS))
@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_a_required_call_is_made_whatever_the_model_wants(
    llm: LLM, format_name: str, temperature: float
) -> None:
    for seed in range(4):
        choice = parse_tool_choice(TOOLS, "required")
        assert calls_of(llm, choice, format_name, temperature=temperature, seed=seed)
        one = parse_tool_choice(TOOLS, "required", parallel_tool_calls=False)
        assert len(calls_of(llm, one, format_name, temperature=temperature, seed=seed)) == 1


@pytest.mark.parametrize("format_name", list(TOOL_FORMATS))
@pytest.mark.parametrize("name", ["add", "ping"])
def test_a_named_call_is_that_one(llm: LLM, format_name: str, name: str) -> None:
    choice = parse_tool_choice(TOOLS, {"type": "function", "function": {"name": name}})
    (call,) = calls_of(llm, choice, format_name, temperature=2.0, seed=3)
    assert call[0] == name


def test_strict_tools_leave_text_free_and_bind_calls(llm: LLM) -> None:
    strict = [{"type": "function", "function": {"name": "ping", "strict": True}}]
    choice = parse_tool_choice(strict, "auto")
    form = tool_call_form(choice, TOOL_FORMATS["hermes"])
    assert form is not None
    matcher_accepts = {}
    grammar = llm.parts.input_processor._grammar_compiler.compile(form)
    encode = llm.tokenizer.encode
    for text in (
        "any text < with <tool> and <tool_cal but none",
        'so: <tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "ping", "arguments": {"a"',
        "<<tool_call>\n{" + '"name": "pong"',
    ):
        state, ids = grammar.new_state(), encode(text, parse_special=False)
        matcher_accepts[text] = state.validate_tokens(ids) == len(ids)
    assert list(matcher_accepts.values()) == [True, True, False, False]
    assert tool_call_form(parse_tool_choice(TOOLS, "auto"), TOOL_FORMATS["hermes"]) is None
    assert tool_call_form(parse_tool_choice(strict, "none"), TOOL_FORMATS["hermes"]) is None
    with pytest.raises(RequestError, match="strict needs tool_choice required"):
        tool_call_form(choice, TOOL_FORMATS["json"])


def test_a_schema_that_can_t_be_followed_is_named(llm: LLM) -> None:
    bad = {"name": "bad", "parameters": {"type": "object", "properties": {"x": {"uniqueItems": True}}}}
    choice = parse_tool_choice([*TOOLS, {"type": "function", "function": bad}], "required")
    params = SamplingParams(structured_outputs=tool_call_form(choice, TOOL_FORMATS["hermes"]))
    with pytest.raises(RequestError, match="uniqueItems") as caught:
        llm.generate("hi", params)
    assert caught.value.field == "tools[2].function.parameters"
    assert caught.value.value == "/properties/x/uniqueItems"
