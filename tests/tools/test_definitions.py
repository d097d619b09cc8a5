"""Tools and tool_choice: what is taken, what is refused and by which name."""

from __future__ import annotations

import pytest

from ridgeline.errors import RequestError
from ridgeline.tools.definitions import ToolMode, parse_tool_choice

ADD = {"type": "function", "function": {"name": "add", "description": "Adds.", "strict": True}}
FLAT = {"type": "function", "name": "sub", "parameters": {"type": "object"}}


def test_both_forms_of_a_tool_are_taken() -> None:
    choice = parse_tool_choice([ADD, FLAT], None)
    assert choice.mode is ToolMode.AUTO
    assert [tool.name for tool in choice.callable_tools] == ["add", "sub"]
    assert choice.tools[0].is_strict
    assert choice.parallel
    assert choice.tools[1].as_openai() == {
        "type": "function",
        "function": {"name": "sub", "description": "", "parameters": {"type": "object"}},
    }


@pytest.mark.parametrize(
    ("tool_choice", "mode", "names"),
    [
        ("none", ToolMode.NONE, []),
        ("auto", ToolMode.AUTO, ["add", "sub"]),
        ("required", ToolMode.REQUIRED, ["add", "sub"]),
        ({"type": "function", "function": {"name": "sub"}}, ToolMode.NAMED, ["sub"]),
        ({"type": "function", "name": "add"}, ToolMode.NAMED, ["add"]),
    ],
)
def test_the_choice_says_what_may_be_called(tool_choice: object, mode: ToolMode, names: list[str]) -> None:
    choice = parse_tool_choice([ADD, FLAT], tool_choice, parallel_tool_calls=False)
    assert (choice.mode, [tool.name for tool in choice.callable_tools]) == (mode, names)
    assert not choice.parallel


@pytest.mark.parametrize("tool_choice", [None, "none", "auto"])
def test_without_tools_nothing_is_called(tool_choice: object) -> None:
    assert parse_tool_choice(None, tool_choice).mode is ToolMode.NONE
    assert parse_tool_choice([], tool_choice).mode is ToolMode.NONE


@pytest.mark.parametrize(
    ("tools", "tool_choice", "parallel", "field"),
    [
        ("add", None, None, "tools"),
        ([ADD] * 129, None, None, "tools"),
        (["add"], None, None, "tools[0]"),
        ([ADD, {"type": "web_search"}], None, None, "tools[1].type"),
        ([{"type": "function", "function": 3}], None, None, "tools[0].function"),
        ([{"type": "function", "function": {}}], None, None, "tools[0].function.name"),
        ([{"type": "function", "function": {"name": 'a"b'}}], None, None, "tools[0].function.name"),
        ([{**FLAT, "description": 3}], None, None, "tools[0].description"),
        ([{**FLAT, "parameters": "x"}], None, None, "tools[0].parameters"),
        ([{**FLAT, "strict": "yes"}], None, None, "tools[0].strict"),
        ([ADD, ADD], None, None, "tools[1]"),
        (None, "required", None, "tool_choice"),
        ([ADD], "always", None, "tool_choice"),
        ([ADD], {"type": "function", "function": {"name": "mul"}}, None, "tool_choice"),
        ([ADD], {"type": "function", "function": {}}, None, "tool_choice"),
        ([ADD], {"type": "allowed_tools"}, None, "tool_choice"),
        ([ADD], None, "yes", "parallel_tool_calls"),
    ],
)
def test_a_refusal_names_the_field(tools: object, tool_choice: object, parallel: object, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_tool_choice(tools, tool_choice, parallel)
    assert caught.value.field == field
