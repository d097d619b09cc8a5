"""The ways in which models write tool calls, as a table; a new model family is a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """How calls stand in a text.

    A call is a JSON object with `name` and one of `argument_keys`. With `opening`, calls stand between it and
    `closing`, anywhere in the text. Without it they are the whole text, after one of `prefixes` if given.
    `separator` stands between parallel calls; a JSON list of calls is read everywhere.
    """

    name: str
    argument_keys: tuple[str, ...]
    opening: str = ""
    closing: str = ""
    prefixes: tuple[str, ...] = ()
    separator: str = "\n"

    def frame(self, tool_name: str) -> tuple[str, str]:
        """What stands before and behind the arguments of a call."""
        before = f'{{"name": "{tool_name}", "{self.argument_keys[0]}": '
        if not self.opening:
            return before, "}"
        return f"{self.opening}\n{before}", f"}}\n{self.closing}"


TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {
        "hermes": ToolFormat(
            name="hermes",
            argument_keys=("arguments", "parameters"),
            opening="<tool_call>",
            closing="</tool_call>",
        ),
        "llama3_json": ToolFormat(
            name="llama3_json",
            argument_keys=("parameters", "arguments"),
            prefixes=("<|python_tag|>",),
            separator="; ",
        ),
        "json": ToolFormat(
            name="json",
            argument_keys=("arguments", "parameters"),
            prefixes=("```json", "```"),
            separator="\n",
        ),
    }
)
"""`--tool-call-parser` → format; the first two names are vLLM's."""

_SIGNS = (("<tool_call>", "hermes"), ("<|python_tag|>", "llama3_json"), ('"parameters":', "llama3_json"))
"""What a chat template that knows of tools holds → the format it teaches."""
_FAMILIES = (("hermes", "hermes"), ("qwen", "hermes"), ("smollm", "hermes"), ("llama-3", "llama3_json"))
"""Part of a model's name, in lower case → the format it was trained on."""


def detect_format(chat_template: str | None, model_name: str) -> ToolFormat:
    """The format that a model's template teaches, else that of its family, else plain JSON."""
    for sign, name in _SIGNS:
        if chat_template is not None and "tools" in chat_template and sign in chat_template:
            return TOOL_FORMATS[name]
    for part, name in _FAMILIES:
        if part in model_name.lower():
            return TOOL_FORMATS[name]
    return TOOL_FORMATS["json"]
