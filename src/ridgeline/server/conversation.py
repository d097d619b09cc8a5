"""A body's conversation through the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ridgeline.engine.conversation import TemplateOptions, conversation_ids
from ridgeline.server.call import loaded_llm
from ridgeline.server.state import ServerState
from ridgeline.tools.definitions import ToolDefinition
from ridgeline.tools.formats import TOOL_FORMATS, ToolFormat, detect_format


class TemplateFields(Protocol):
    """What a body says about the chat template."""

    messages: Any
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: dict[str, Any] | None


def template_options(fields: TemplateFields) -> TemplateOptions:
    """What a body asks of the template.

    Raises:
        RequestError: its options contradict each other.
    """
    return TemplateOptions(
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        chat_template_kwargs=fields.chat_template_kwargs,
    )


def conversation_token_ids(
    fields: TemplateFields,
    tools: Sequence[ToolDefinition],
    state: ServerState,
    *,
    max_num_tokens: int | None = None,
) -> list[int]:
    """Ids of a body's conversation.

    Raises:
        RequestError: its options contradict each other, the template refuses the messages, or their text
            can't be told in `max_num_tokens`.
    """
    return conversation_ids(
        loaded_llm(state).tokenizer,
        fields.messages,
        options=template_options(fields),
        tools=tools,
        tool_format=tool_format_of(state),
        max_num_tokens=max_num_tokens,
    )


def tool_format_of(state: ServerState) -> ToolFormat:
    """How the model writes calls: as the operator says, else by its template and family."""
    if state.config.tool_call_parser != "auto":
        return TOOL_FORMATS[state.config.tool_call_parser]
    llm = loaded_llm(state)
    return detect_format(llm.tokenizer.chat_template_source, llm.model_name)
