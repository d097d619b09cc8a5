"""Tools, calls and results in messages: for templates that know of them, and for those that don't."""

from __future__ import annotations

import pytest

from ridgeline.errors import RequestError
from ridgeline.tools.definitions import parse_tools
from ridgeline.tools.formats import TOOL_FORMATS
from ridgeline.tools.prompting import for_plain_template, for_tool_template, system_block

TOOLS = parse_tools([{"type": "function", "function": {"name": "ping", "description": "Pings."}}])
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
MESSAGES = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "it is 3"}]},
]
HERMES = TOOL_FORMATS["hermes"]


def test_a_template_that_knows_gets_arguments_as_objects() -> None:
    told = for_tool_template(MESSAGES)
    assert told[1]["tool_calls"] == [{**CALL, "function": {"name": "add", "arguments": {"a": 1}}}]
    assert told[0] == MESSAGES[0]
    assert told[2] == MESSAGES[2]
    assert CALL["function"]["arguments"] == '{"a": 1}'  # type: ignore[index]


def test_a_template_that_does_not_gets_plain_turns() -> None:
    system, user, assistant, result = for_plain_template(MESSAGES, TOOLS, HERMES)
    assert system == {"role": "system", "content": system_block(TOOLS, HERMES)}
    assert user == MESSAGES[0]
    assert assistant == {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    }
    assert result == {"role": "user", "content": "<tool_response>\nit is 3\n</tool_response>"}


def test_the_block_joins_the_system_message_that_is_there() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *MESSAGES[:1]]
    first, *rest = for_plain_template(messages, TOOLS, HERMES)
    assert str(first["content"]).startswith("Be brief.\n\nYou may call functions.")
    assert rest == MESSAGES[:1]
    assert for_plain_template(messages, (), HERMES) == messages


def test_text_before_a_call_is_kept() -> None:
    message = {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, CALL]}
    (told,) = for_plain_template([message], (), TOOL_FORMATS["llama3_json"])
    call = '{"name": "add", "parameters": {"a": 1}}'
    assert told["content"] == f"Let me see.\n{call}; {call}"


@pytest.mark.parametrize(
    ("calls", "field"),
    [
        ("x", "messages[0].tool_calls"),
        ([3], "messages[0].tool_calls[0].function"),
        ([{"function": {}}], "messages[0].tool_calls[0].function"),
        (
            [CALL, {"function": {"name": "a", "arguments": "{"}}],
            "messages[0].tool_calls[1].function.arguments",
        ),
        *(
            ([{"function": {"name": "a", "arguments": text}}], "messages[0].tool_calls[0].function.arguments")
            for text in ("[" * 5000, "9" * 5000)
        ),
    ],
)
def test_a_malformed_call_is_named(calls: object, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        for_tool_template([{"role": "assistant", "tool_calls": calls}])
    assert caught.value.field == field
