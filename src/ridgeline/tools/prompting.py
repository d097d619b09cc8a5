"""How a model is told of tools, of its own earlier calls and of their results.

A template that knows of tools gets them as OpenAI writes them. For one that doesn't, they stand in a system
block (docs/tools.md), earlier calls are written as the model would write them, and results come from the
user.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ridgeline.errors import RequestError
from ridgeline.tools.definitions import ToolDefinition
from ridgeline.tools.formats import ToolFormat

Messages = list[dict[str, object]]


def for_tool_template(messages: Sequence[Mapping[str, object]]) -> Messages:
    """Messages whose calls hold their arguments as objects, which such templates write out as JSON.

    Raises:
        RequestError: a call is malformed; names it.
    """
    told: Messages = []
    for index, message in enumerate(messages):
        calls = _calls(message, index)
        told.append({**message, "tool_calls": calls} if calls else dict(message))
    return told


def for_plain_template(
    messages: Sequence[Mapping[str, object]], tools: Sequence[ToolDefinition], tool_format: ToolFormat
) -> Messages:
    """Messages that say everything about tools in plain turns.

    Raises:
        RequestError: a call is malformed; names it.
    """
    told: Messages = []
    for index, message in enumerate(messages):
        calls = _calls(message, index)
        if message.get("role") == "tool":
            text = f"<tool_response>\n{_text(message)}\n</tool_response>"
            told.append({"role": "user", "content": text})
        elif calls:
            written = [_written(call, tool_format) for call in calls]
            content = tool_format.separator.join(written)
            before = _text(message)
            told.append({"role": "assistant", "content": f"{before}\n{content}" if before else content})
        else:
            told.append(dict(message))
    if not tools:
        return told
    block = system_block(tools, tool_format)
    if told and told[0].get("role") == "system":
        return [{**told[0], "content": f"{_text(told[0])}\n\n{block}"}, *told[1:]]
    return [{"role": "system", "content": block}, *told]


def system_block(tools: Sequence[ToolDefinition], tool_format: ToolFormat) -> str:
    """What a model is told whose template leaves tools out."""
    before, behind = tool_format.frame("NAME")
    listed = "\n".join(json.dumps(tool.as_openai()["function"], ensure_ascii=False) for tool in tools)
    return (
        "You may call functions. Each line describes one; its parameters are a JSON Schema:\n"
        f"{listed}\n"
        "To call a function, answer with nothing but its name and its arguments, in this form:\n"
        f"{before}{{…}}{behind}\n"
        "Otherwise answer as usual."
    )


def _calls(message: Mapping[str, object], index: int) -> list[dict[str, object]]:
    calls = message.get("tool_calls")
    if not calls:
        return []
    field = f"messages[{index}].tool_calls"
    if not isinstance(calls, list):
        raise RequestError(field, calls, "must be a list")
    parsed: list[dict[str, object]] = []
    for place, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(f"{field}[{place}].function", function, "must be an object with a name")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError) as error:
                at = f"{field}[{place}].function.arguments"
                raise RequestError(at, arguments, f"must be JSON: {error}") from None
        parsed.append({**call, "function": {**function, "arguments": arguments or {}}})
    return parsed


def _written(call: Mapping[str, object], tool_format: ToolFormat) -> str:
    function = call["function"]
    assert isinstance(function, Mapping)
    before, behind = tool_format.frame(str(function["name"]))
    return f"{before}{json.dumps(function['arguments'], ensure_ascii=False)}{behind}"


def _text(message: Mapping[str, object]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""
