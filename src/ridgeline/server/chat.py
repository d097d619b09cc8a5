"""POST /v1/chat/completions: conversations through the model's template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from ridgeline.engine.async_engine import Submission
from ridgeline.engine.clock import wall_time_s
from ridgeline.engine.input_processor import ParsedPrompt
from ridgeline.errors import RequestError
from ridgeline.outputs import CompletionOutput, RequestOutput
from ridgeline.sampling_params import SamplingParams
from ridgeline.server.call import loaded_llm
from ridgeline.server.chunk_writer import ChunkWriter
from ridgeline.server.conversation import conversation_token_ids, template_options, tool_format_of
from ridgeline.server.errors import event_of
from ridgeline.server.logprobs_form import chat_logprobs, prompt_logprobs_document
from ridgeline.server.sampling_fields import SamplingFields, sampling_params
from ridgeline.server.state import ServerState
from ridgeline.server.tool_answers import ToolAnswers
from ridgeline.server.usage import Usage
from ridgeline.structured_outputs import ToolCallForm
from ridgeline.tools.definitions import ToolChoice, parse_tool_choice
from ridgeline.tools.forms import tool_call_form


class ChatRequest(SamplingFields, kw_only=True):
    """The body of POST /v1/chat/completions."""

    logprobs_field: ClassVar[str] = "top_logprobs"
    messages: list[dict[str, Any]]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def num_prompts(self) -> int:
        """One conversation."""
        return 1

    def check(self) -> None:
        """Refuse what does not go together.

        Raises:
            RequestError: `top_logprobs` without `logprobs`, two limits that differ, or template options
                that contradict each other.
        """
        template_options(self)
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs", self.top_logprobs, "only with logprobs: true")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise RequestError("max_tokens", self.max_tokens, "differs from max_completion_tokens; give one")

    def choice(self) -> ToolChoice:
        """What is asked of the tools.

        Raises:
            RequestError: a tool or the choice is malformed.
        """
        return parse_tool_choice(self.tools, self.tool_choice, self.parallel_tool_calls)

    def params(self, state: ServerState) -> SamplingParams:
        """The sampling parameters; without a limit the answer may fill the context.

        Raises:
            RequestError: a value is out of range, or calls of tools and a form other than JSON are asked for.
        """
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        params = sampling_params(self, max_tokens=limit, logprobs=logprobs)
        choice = self.choice()
        if not choice.callable_tools:
            return params
        wanted = params.structured_outputs
        assert not isinstance(wanted, ToolCallForm)
        answer = wanted.content if wanted is not None and wanted.kind == "json" else None
        form = tool_call_form(choice, tool_format_of(state), answer=answer)
        if form is None:
            return params
        if wanted is not None and answer is None:
            remedy = "can't be kept by an answer that calls tools; leave one out"
            raise RequestError("structured_outputs", self.structured_outputs, remedy)
        return replace(params, structured_outputs=form)

    def parse(self, state: ServerState) -> list[ParsedPrompt]:
        """Render and tokenise the conversation; runs in a text thread."""
        processor = loaded_llm(state).parts.input_processor
        token_ids = conversation_token_ids(
            self, self.choice().callable_tools, state, max_num_tokens=processor.max_num_prompt_tokens
        )
        return [processor.parse_prompt_ids(token_ids)]

    def renamed(self, error: RequestError) -> RequestError:
        """The error under the name of the field that the caller wrote."""
        if error.field in ("prompt", "prompt_token_ids"):
            return error.renamed("messages")
        return SamplingFields.renamed(self, error)


class ChatForm:
    """Writes the answers of one chat request, streamed or whole.

    `name` is the answer's id and the model's name.
    """

    def __init__(
        self,
        fields: ChatRequest,
        name: tuple[str, str],
        submissions: Sequence[Submission],
        state: ServerState,
    ) -> None:
        self._fields = fields
        self._tokenizer = loaded_llm(state).tokenizer
        choice = fields.choice()
        self._tools = ToolAnswers(choice, tool_format_of(state)) if choice.callable_tools else None
        self._prompt_token_ids = submissions[0].prompt.token_ids
        self._head: dict[str, object] = {
            "id": name[0],
            "object": "chat.completion",
            "created": int(wall_time_s()),
            "model": name[1],
        }
        self._writer = ChunkWriter({**self._head, "object": "chat.completion.chunk"}, fields, submissions)

    def first_events(self) -> bytes:
        """The role of each choice."""
        events = []
        for index in range(self._fields.n or 1):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            if self._fields.return_token_ids and index == 0:
                choice["prompt_token_ids"] = self._prompt_token_ids
            events.append(self._writer.chunk([choice]))
        return b"".join(events)

    def events(self, delta: RequestOutput) -> bytes:
        """One event a choice that the delta brings."""
        self._writer.count(delta)
        return b"".join(
            [
                self._writer.chunk(
                    [self._choice(c, "delta", self._tools.delta(c) if self._tools else {"content": c.text})]
                )
                for c in delta.outputs
            ]
        )

    def last_events(self) -> bytes:
        """The usage, where it was asked for."""
        return self._writer.last_events()

    def error_events(self, error: Exception) -> bytes:
        """The error, as the whole answer would say it."""
        return event_of(error)

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The body of an answer that is not streamed."""
        usage, (output,) = Usage(), outputs
        usage.add(output)
        choices = [
            self._choice(
                c,
                "message",
                self._tools.whole(c)
                if self._tools
                else {"role": "assistant", "content": c.text, "refusal": None},
            )
            for c in output.outputs
        ]
        document = {**self._head, "choices": choices, "usage": usage.document()}
        if output.prompt_logprobs is not None:
            document["prompt_logprobs"] = prompt_logprobs_document(output.prompt_logprobs)
        if self._fields.return_token_ids:
            document["prompt_token_ids"] = output.prompt_token_ids
        return msgspec.json.encode(document)

    def _choice(
        self, completion: CompletionOutput, key: str, message: dict[str, object]
    ) -> dict[str, object]:
        logprobs = None
        if self._fields.logprobs and completion.logprobs is not None:
            logprobs = chat_logprobs(completion, self._fields.top_logprobs or 0, self._tokenizer)
        choice: dict[str, object] = {
            "index": completion.index,
            key: message,
            "logprobs": logprobs,
            "finish_reason": self._tools.finish_reason(completion)
            if self._tools
            else completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if self._fields.return_token_ids:
            choice["token_ids"] = completion.token_ids
        return choice


CHAT_EXAMPLE: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
    "max_completion_tokens": 32,
}
