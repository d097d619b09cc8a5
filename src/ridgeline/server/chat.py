"""POST /v1/chat/completions: conversations through the model's template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ridgeline.async_llm import AsyncLLM
from ridgeline.engine.async_engine import Submission
from ridgeline.engine.clock import wall_time_s
from ridgeline.engine.input_processor import ParsedPrompt
from ridgeline.errors import RequestError
from ridgeline.outputs import CompletionOutput, RequestOutput
from ridgeline.sampling_params import SamplingParams
from ridgeline.server.chunk_writer import ChunkWriter
from ridgeline.server.logprobs_form import chat_logprobs, prompt_logprobs_document
from ridgeline.server.sampling_fields import SamplingFields, sampling_params
from ridgeline.server.usage import Usage


class ChatRequest(SamplingFields, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None

    @property
    def num_prompts(self) -> int:
        """One conversation."""
        return 1

    def check(self) -> None:
        """Refuse what does not go together.

        Raises:
            RequestError: `top_logprobs` without `logprobs`, or two limits that differ.
        """
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs", self.top_logprobs, "only with logprobs: true")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise RequestError("max_tokens", self.max_tokens, "differs from max_completion_tokens; give one")

    def params(self) -> SamplingParams:
        """The sampling parameters; without a limit the answer may fill the context."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return sampling_params(
            self, max_tokens=limit, logprobs=(self.top_logprobs or 0) if self.logprobs else None
        )

    def parse(self, llm: AsyncLLM) -> list[ParsedPrompt]:
        """Render and tokenise the conversation; runs in a text thread."""
        token_ids = llm.tokenizer.apply_chat_template(
            self.messages, add_generation_prompt=self.add_generation_prompt is not False
        )
        try:
            return [llm.parts.input_processor.parse_prompt_ids(token_ids)]
        except RequestError as error:
            raise RequestError("messages", error.value, error.remedy) from None


class ChatForm:
    """Writes the answers of one chat request, streamed or whole.

    `name` is the answer's id and the model's name.
    """

    def __init__(
        self, fields: ChatRequest, name: tuple[str, str], submissions: Sequence[Submission], llm: AsyncLLM
    ) -> None:
        self._fields = fields
        self._tokenizer = llm.tokenizer
        self._prompt_token_ids = submissions[0].prompt.token_ids
        self._head: dict[str, object] = {
            "id": name[0],
            "object": "chat.completion",
            "created": int(wall_time_s()),
            "model": name[1],
        }
        self._writer = ChunkWriter({**self._head, "object": "chat.completion.chunk"}, fields)

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
            [self._writer.chunk([self._choice(c, "delta", {"content": c.text})]) for c in delta.outputs]
        )

    def last_events(self) -> bytes:
        """The usage, where it was asked for."""
        return self._writer.last_events()

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The body of an answer that is not streamed."""
        usage, (output,) = Usage(), outputs
        usage.add(output)
        choices = [
            self._choice(c, "message", {"role": "assistant", "content": c.text, "refusal": None})
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
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if self._fields.return_token_ids:
            choice["token_ids"] = completion.token_ids
        return choice


CHAT_EXAMPLE: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
    "max_completion_tokens": 32,
}
