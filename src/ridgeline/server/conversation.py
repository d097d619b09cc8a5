"""A body's conversation through the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ridgeline.errors import RequestError
from ridgeline.server.call import loaded_llm
from ridgeline.server.state import ServerState
from ridgeline.tools.definitions import ToolDefinition
from ridgeline.tools.formats import TOOL_FORMATS, ToolFormat, detect_format
from ridgeline.tools.prompting import for_plain_template, for_tool_template

OWN_NAMES = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
)
"""Names that `chat_template_kwargs` may not set: they have fields of their own, or none."""


class TemplateFields(Protocol):
    """What a body says about the chat template."""

    messages: Any
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: dict[str, Any] | None


def check_template_fields(fields: TemplateFields) -> None:
    """Refuse template options that contradict each other.

    Raises:
        RequestError: it asks to go on with a message and to open a new one, or sets a name of ours.
    """
    if fields.continue_final_message and fields.add_generation_prompt:
        remedy = "contradicts add_generation_prompt: true; give one of them"
        raise RequestError("continue_final_message", True, remedy)
    for name in sorted(OWN_NAMES & set(fields.chat_template_kwargs or ())):
        raise RequestError(f"chat_template_kwargs.{name}", "…", "can't be set here")


def conversation_token_ids(
    fields: TemplateFields, tools: Sequence[ToolDefinition], state: ServerState
) -> list[int]:
    """Ids of a conversation as the template writes it; it is told the tools, or a system message is.

    Raises:
        RequestError: the template refuses it.
    """
    tokenizer = loaded_llm(state).tokenizer
    takes_tools = tokenizer.chat_template_takes_tools
    if takes_tools:
        messages = for_tool_template(fields.messages)
    else:
        messages = for_plain_template(fields.messages, tools, tool_format_of(state))
    return tokenizer.apply_chat_template(
        messages,
        add_generation_prompt=fields.add_generation_prompt is not False,
        continue_final_message=bool(fields.continue_final_message),
        tools=[tool.as_openai() for tool in tools] if takes_tools else [],
        variables=fields.chat_template_kwargs,
    )


def tool_format_of(state: ServerState) -> ToolFormat:
    """How the model writes calls: as the operator says, else by its template and family."""
    if state.config.tool_call_parser != "auto":
        return TOOL_FORMATS[state.config.tool_call_parser]
    llm = loaded_llm(state)
    return detect_format(llm.tokenizer.chat_template_source, llm.model_name)
