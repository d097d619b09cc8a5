"""The form that a text must have when tools must be called, or may be called by a schema."""

from __future__ import annotations

import json

from ridgeline.errors import RequestError
from ridgeline.structured_outputs import ToolCallForm, ToolFrame
from ridgeline.tools.argument_schemas import closed
from ridgeline.tools.definitions import ToolChoice, ToolDefinition, ToolMode
from ridgeline.tools.formats import ToolFormat

MAX_PARALLEL_CALLS = 16


def tool_call_form(
    choice: ToolChoice, tool_format: ToolFormat, *, answer: str | None = None
) -> ToolCallForm | None:
    """What `choice` demands of the text; None where the model is free.

    `required` and `named`: calls and nothing else. `auto` with an `answer`, a JSON Schema as text: such a
    document, or calls. `auto` without: free, unless a tool is strict; then text in which every call
    follows its schema (only in formats that mark calls).

    Raises:
        RequestError: a strict tool in a format in which calls can't be told from text beforehand.
    """
    is_forced = choice.mode in (ToolMode.REQUIRED, ToolMode.NAMED)
    strict = [tool for tool in choice.callable_tools if tool.is_strict]
    is_free = not is_forced and answer is None
    if is_free and not strict:
        return None
    if is_free and not tool_format.opening:
        remedy = f"needs tool_choice required or a named tool: the format {tool_format.name} marks no calls"
        raise RequestError("tools", strict[0].name, f"strict {remedy}")
    return ToolCallForm(
        frames=tuple(_frame(tool, choice, tool_format) for tool in choice.callable_tools),
        separator=tool_format.separator,
        max_calls=MAX_PARALLEL_CALLS if choice.parallel else 1,
        allows_text=is_free,
        answer=None if is_forced else answer,
        opening=tool_format.opening,
    )


def _frame(tool: ToolDefinition, choice: ToolChoice, tool_format: ToolFormat) -> ToolFrame:
    before, behind = tool_format.frame(tool.name)
    schema = json.dumps(closed(tool.parameters), ensure_ascii=False)
    return ToolFrame(f"tools[{choice.tools.index(tool)}].function.parameters", before, schema, behind)
