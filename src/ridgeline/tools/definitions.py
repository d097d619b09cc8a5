"""Tools as a caller defines them, and which of them the model may, must or must not call: checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ridgeline.errors import RequestError

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NO_PARAMETERS: Mapping[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """One function: `parameters` is the JSON Schema of its arguments.

    `is_strict`: its arguments follow the schema whatever else the model may do.
    """

    name: str
    description: str
    parameters: Mapping[str, object]
    is_strict: bool = False

    def as_openai(self) -> dict[str, object]:
        """The form that chat templates expect."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


class ToolMode(StrEnum):
    """Whether the model calls tools, in OpenAI's words; `named` is one function by name."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What a request asks of its tools. `callable_tools` are those that may be called."""

    mode: ToolMode
    tools: tuple[ToolDefinition, ...] = ()
    callable_tools: tuple[ToolDefinition, ...] = ()
    parallel: bool = True


def parse_tool_choice(tools: object, tool_choice: object, parallel_tool_calls: object = None) -> ToolChoice:
    """OpenAI's three fields of a chat request, None where absent.

    Raises:
        RequestError: one is malformed, or names a tool that isn't there; names the field.
    """
    if parallel_tool_calls not in (None, True, False):
        raise RequestError("parallel_tool_calls", parallel_tool_calls, "must be true or false")
    parallel = parallel_tool_calls is not False
    definitions = parse_tools(tools)
    if not definitions:
        if tool_choice not in (None, "none", "auto"):
            raise RequestError("tool_choice", tool_choice, "there are no tools to choose from: give tools")
        return ToolChoice(ToolMode.NONE)
    if tool_choice == "none":
        return ToolChoice(ToolMode.NONE, definitions, (), parallel)
    if tool_choice in (None, "auto", "required"):
        return ToolChoice(ToolMode(tool_choice or "auto"), definitions, definitions, parallel)
    name = _named(tool_choice)
    chosen = tuple(tool for tool in definitions if tool.name == name)
    if not chosen:
        known = ", ".join(tool.name for tool in definitions)
        raise RequestError("tool_choice", name, f"names no tool of this request; there are: {known}")
    return ToolChoice(ToolMode.NAMED, definitions, chosen, parallel=False)


def parse_tools(tools: object) -> tuple[ToolDefinition, ...]:
    """OpenAI's list of tools, in chat's form or the flat one of the Responses API.

    Raises:
        RequestError: names the tool and the key, as in `tools[2].function.name`.
    """
    if tools is None:
        return ()
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence) or len(tools) > MAX_TOOLS:
        raise RequestError("tools", tools, f"must be a list of at most {MAX_TOOLS} functions")
    definitions: dict[str, ToolDefinition] = {}
    for index, tool in enumerate(tools):
        definition = _parse_tool(tool, f"tools[{index}]")
        if definition.name in definitions:
            raise RequestError(f"tools[{index}]", definition.name, "is the name of another tool too")
        definitions[definition.name] = definition
    return tuple(definitions.values())


def _parse_tool(tool: object, field: str) -> ToolDefinition:
    if not isinstance(tool, Mapping):
        raise RequestError(field, tool, 'must be an object like {"type": "function", "function": {…}}')
    if tool.get("type") != "function":
        raise RequestError(f"{field}.type", tool.get("type"), 'only "function" tools are supported')
    function = tool.get("function", tool)
    if function is not tool:
        field = f"{field}.function"
    if not isinstance(function, Mapping):
        raise RequestError(field, function, "must be an object with a name")
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(f"{field}.name", name, "must be 1 to 64 letters, digits, _ and -")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{field}.description", description, "must be text")
    parameters, strict = function.get("parameters"), function.get("strict")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise RequestError(f"{field}.parameters", parameters, "must be a JSON Schema of the arguments")
    if strict not in (None, True, False):
        raise RequestError(f"{field}.strict", strict, "must be true or false")
    return ToolDefinition(name, description or "", parameters or _NO_PARAMETERS, strict is True)


def _named(tool_choice: object) -> str:
    remedy = 'must be "none", "auto", "required" or {"type": "function", "function": {"name": …}}'
    if not isinstance(tool_choice, Mapping) or tool_choice.get("type") != "function":
        raise RequestError("tool_choice", tool_choice, remedy)
    function = tool_choice.get("function", tool_choice)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise RequestError("tool_choice", tool_choice, remedy)
    return name
