"""Conversations as token ids: messages, and the tools they may call, through the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.errors import RequestError
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer
from ridgeline.tools.definitions import ToolDefinition, parse_tools
from ridgeline.tools.formats import ToolFormat, detect_format
from ridgeline.tools.prompting import for_plain_template, for_tool_template

OWN_NAMES = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"}
)
"""Names that `chat_template_kwargs` may not set: they are options of their own, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOptions:
    """How a conversation is written out, in vLLM's names; None is as good as absent.

    `add_generation_prompt` opens the model's turn, which is the default unless the last message is to be
    continued; `chat_template_kwargs` are further names for the template.

    Raises:
        RequestError: they contradict each other, or set a name of ours; names the option.
    """

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        if self.continue_final_message and self.add_generation_prompt:
            remedy = "contradicts add_generation_prompt: true; give one of them"
            raise RequestError("continue_final_message", True, remedy)
        given = self.chat_template_kwargs
        if given is not None and not isinstance(given, Mapping):
            raise RequestError("chat_template_kwargs", given, "must be names with values")
        for name in sorted(OWN_NAMES & set(given or ())):
            raise RequestError(f"chat_template_kwargs.{name}", "…", "can't be set here")


def conversation_ids(
    tokenizer: Tokenizer,
    messages: object,
    *,
    options: TemplateOptions,
    tools: Sequence[ToolDefinition],
    tool_format: ToolFormat,
    max_num_tokens: int | None = None,
) -> list[int]:
    """Ids of a conversation as the template writes it; it is told the tools, or a system message is.

    Raises:
        RequestError: a message is malformed, the template refuses them, or their text can't be told in
            `max_num_tokens`.
    """
    takes_tools = tokenizer.chat_template_takes_tools
    if isinstance(messages, list | tuple) and messages and all(isinstance(m, Mapping) for m in messages):
        messages = (
            for_tool_template(messages) if takes_tools else for_plain_template(messages, tools, tool_format)
        )
    return tokenizer.apply_chat_template(
        messages,
        add_generation_prompt=options.add_generation_prompt is not False,
        continue_final_message=bool(options.continue_final_message),
        tools=[tool.as_openai() for tool in tools] if takes_tools else [],
        variables=options.chat_template_kwargs,
        max_num_tokens=max_num_tokens,
    )


def chat_ids(
    tokenizer: Tokenizer,
    messages: object,
    *,
    options: TemplateOptions,
    tools: object,
    model_name: str,
    max_num_tokens: int | None = None,
) -> list[int]:
    """`conversation_ids` of tools as OpenAI writes them (None: none), in the format of the model's family.

    Raises:
        RequestError: a tool or a message is malformed, or the template refuses them.
    """
    return conversation_ids(
        tokenizer,
        messages,
        options=options,
        tools=parse_tools(tools),
        tool_format=detect_format(tokenizer.chat_template_source, model_name),
        max_num_tokens=max_num_tokens,
    )
