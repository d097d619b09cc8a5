"""POST /v1/responses, stateless: OpenAI's items in, a conversation through the model's template."""

from __future__ import annotations

from typing import Any

from ridgeline.engine.input_processor import ParsedPrompt
from ridgeline.errors import RequestError
from ridgeline.sampling_params import SamplingParams
from ridgeline.server.chat import ChatRequest
from ridgeline.server.output_form import renamed
from ridgeline.server.sampling_fields import SamplingFields
from ridgeline.server.state import ServerState

_STATEFUL = ("previous_response_id", "conversation", "prompt", "background", "store")
_TEXT_PARTS = ("input_text", "output_text", "text")


class ResponsesRequest(SamplingFields, kw_only=True):
    """The body of POST /v1/responses."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None

    @property
    def num_prompts(self) -> int:
        """One conversation."""
        return 1

    def check(self) -> None:
        """Refuse what needs a memory of earlier responses.

        Raises:
            RequestError: such a field is set.
        """
        for name in _STATEFUL:
            if getattr(self, name):
                remedy = "nothing is stored here: send the whole conversation as input"
                raise RequestError(name, getattr(self, name), remedy)

    def as_chat(self) -> ChatRequest:
        """The same request to chat completions.

        Raises:
            RequestError: an item of the input is of an unknown kind.
        """
        values = {name: getattr(self, name) for name in SamplingFields.__struct_fields__}
        text_format = (self.text or {}).get("format")
        if text_format is not None and not isinstance(text_format, dict):
            raise RequestError("text.format", text_format, "must be an object with a type")
        return ChatRequest(
            **{**values, "response_format": text_format or self.response_format},
            messages=self._messages(),
            max_completion_tokens=self.max_output_tokens,
            tools=self.tools,
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
        )

    def params(self, state: ServerState) -> SamplingParams:
        """As those of chat completions.

        Raises:
            RequestError: a value is out of range, or there are several choices.
        """
        if self.n not in (None, 1):
            raise RequestError("n", self.n, "a response has one choice")
        try:
            return self.as_chat().params(state)
        except RequestError as error:
            raise self.renamed(error) from None

    def parse(self, state: ServerState) -> list[ParsedPrompt]:
        """Render and tokenise the conversation; runs in a text thread."""
        return self.as_chat().parse(state)

    def renamed(self, error: RequestError) -> RequestError:
        """The error under the name of the field that the caller wrote."""
        error = renamed(error, (self.text or {}).get("format"))
        if error.field in ("prompt", "prompt_token_ids"):
            return error.renamed("input")
        for theirs, ours in (
            ("response_format.json_schema.schema", "text.format.schema"),
            ("response_format", "text.format"),
            ("max_tokens", "max_output_tokens"),
            ("messages", "input"),
        ):
            if error.field.startswith(theirs):
                return error.renamed(ours + error.field[len(theirs) :])
        return error

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        for index, item in enumerate(self.input):
            _add_item(messages, item, f"input[{index}]")
        return messages


def _add_item(messages: list[dict[str, Any]], item: dict[str, Any], field: str) -> None:
    match item.get("type", "message"):
        case "message":
            role = "system" if item.get("role") == "developer" else item.get("role")
            messages.append({"role": role, "content": _content(item.get("content"), f"{field}.content")})
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            # Calls that follow one another were made in one turn.
            if messages and messages[-1].get("tool_calls"):
                messages[-1]["tool_calls"].append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        case "function_call_output":
            content = _content(item.get("output"), f"{field}.output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        case kind:
            remedy = "must be message, function_call or function_call_output"
            raise RequestError(f"{field}.type", kind, remedy)


def _content(content: object, field: str) -> object:
    if not isinstance(content, list):
        return content
    parts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS:
            raise RequestError(f"{field}[{index}].type", kind, "only text parts are supported by this model")
        parts.append({"type": "text", "text": part.get("text")})
    return parts


RESPONSES_EXAMPLE: dict[str, Any] = {"input": "Why is the sky blue?", "max_output_tokens": 32}
