"""POST /v1/completions: raw prompts, in which control tokens mean what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from ridgeline.engine.async_engine import Submission
from ridgeline.engine.clock import wall_time_s
from ridgeline.engine.input_processor import ParsedPrompt, as_prompt_list
from ridgeline.errors import RequestError
from ridgeline.outputs import CompletionOutput, LogprobsAtPosition, RequestOutput
from ridgeline.sampling_params import SamplingParams
from ridgeline.server.call import loaded_llm
from ridgeline.server.chunk_writer import ChunkWriter
from ridgeline.server.errors import event_of
from ridgeline.server.logprobs_form import completion_logprobs, prompt_logprobs_document
from ridgeline.server.sampling_fields import SamplingFields, sampling_params
from ridgeline.server.state import ServerState
from ridgeline.server.usage import Usage

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(SamplingFields, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | list[int | str | list[int]]
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    logprobs: int | None = None

    @property
    def num_prompts(self) -> int:
        """Prompts in this request."""
        return len(as_prompt_list(self.prompt))

    @property
    def is_echo_only(self) -> bool:
        """Whether the prompt comes back with its log-probabilities and nothing more."""
        return bool(self.echo) and self.max_tokens == 0

    def check(self) -> None:
        """Refuse what we can't do.

        Raises:
            RequestError: there is a suffix, or `best_of` differs from `n`.
        """
        if self.suffix:
            raise RequestError("suffix", self.suffix, "is not supported: the model only continues text")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise RequestError("best_of", self.best_of, "is not supported; ask for n answers and choose")

    def params(self, _: ServerState) -> SamplingParams:
        """The sampling parameters; an echo with logprobs needs those of the prompt.

        An echo of no further token computes one all the same: the prompt has to be computed.
        """
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        if self.is_echo_only:
            max_tokens = 1
        params = sampling_params(self, max_tokens=max_tokens, logprobs=self.logprobs)
        if self.echo and self.logprobs is not None and params.prompt_logprobs is None:
            params = replace(params, prompt_logprobs=self.logprobs)
        return params

    def parse(self, state: ServerState) -> list[ParsedPrompt]:
        """Tokenise the prompts; runs in a text thread."""
        return loaded_llm(state).parts.input_processor.parse_prompts(as_prompt_list(self.prompt))


class CompletionForm:
    """Writes the answers of one completion request, streamed or whole.

    `name` is the answer's id and the model's name.
    """

    def __init__(
        self,
        fields: CompletionRequest,
        name: tuple[str, str],
        submissions: Sequence[Submission],
        state: ServerState,
    ) -> None:
        self._fields = fields
        self._tokenizer = loaded_llm(state).tokenizer
        self._head: dict[str, object] = {
            "id": name[0],
            "object": "text_completion",
            "created": int(wall_time_s()),
            "model": name[1],
        }
        self._writer = ChunkWriter(self._head, fields, submissions)
        self._submissions = submissions
        self._places = {s.request_id: i for i, s in enumerate(submissions)}
        self._offsets: dict[int, int] = {}
        self._prompt_logprobs: dict[str, list[LogprobsAtPosition | None]] = {}

    def first_events(self) -> bytes:
        """Nothing precedes the tokens."""
        return b""

    def events(self, delta: RequestOutput) -> bytes:
        """One event a choice that the delta brings."""
        if self._fields.is_echo_only:
            delta = _without_completions(delta)
        self._writer.count(delta)
        return b"".join([self._writer.chunk([self._choice(delta, c)]) for c in delta.outputs])

    def last_events(self) -> bytes:
        """The usage, where it was asked for."""
        return self._writer.last_events()

    def error_events(self, error: Exception) -> bytes:
        """The error, as the whole answer would say it."""
        return event_of(error)

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The body of an answer that is not streamed."""
        usage = Usage()
        choices = []
        for output in map(_without_completions, outputs) if self._fields.is_echo_only else outputs:
            usage.add(output)
            choices += [self._choice(output, completion) for completion in output.outputs]
        return msgspec.json.encode({**self._head, "choices": choices, "usage": usage.document()})

    def _choice(self, output: RequestOutput, completion: CompletionOutput) -> dict[str, object]:
        if output.prompt_logprobs is not None:
            self._prompt_logprobs[output.request_id] = output.prompt_logprobs
        place = self._places[output.request_id]
        index = place * (self._fields.n or 1) + completion.index
        is_first = index not in self._offsets
        echoed = self._prompt_text(output) if self._fields.echo and is_first else ""
        text = echoed + completion.text
        choice: dict[str, object] = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(output, completion, index),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if self._fields.prompt_logprobs is not None and output.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs_document(output.prompt_logprobs)
        if self._fields.return_token_ids:
            choice["token_ids"] = completion.token_ids
            if is_first:
                choice["prompt_token_ids"] = output.prompt_token_ids
        self._offsets[index] = self._offsets.get(index, 0) + len(text)
        return choice

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        return self._tokenizer.decode(output.prompt_token_ids)

    def _logprobs(
        self, output: RequestOutput, completion: CompletionOutput, index: int
    ) -> dict[str, object] | None:
        if self._fields.logprobs is None or completion.logprobs is None:
            return None
        token_ids: list[int] = completion.token_ids
        positions: list[LogprobsAtPosition | None] = list(completion.logprobs)
        offset = self._offsets.get(index, 0)
        if self._fields.echo and index not in self._offsets:
            token_ids = [*output.prompt_token_ids, *token_ids]
            positions = [*self._prompt_logprobs[output.request_id], *positions]
        return completion_logprobs(
            token_ids, positions, self._fields.logprobs, offset, self._tokenizer.token_text
        )


def _without_completions(output: RequestOutput) -> RequestOutput:
    """The prompt's part of an output; the token that had to be computed is left out."""
    completions = [
        CompletionOutput(c.index, "", [], None if c.logprobs is None else [], finish_reason=c.finish_reason)
        for c in output.outputs
    ]
    return replace(output, outputs=completions)


COMPLETION_EXAMPLE: dict[str, Any] = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
