"""OutputProcessor: token ids become text, stop strings end requests, deltas become outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ridgeline.core.request import Request
from ridgeline.core.step import TokenLogprobs
from ridgeline.engine.engine import Engine, EngineOutput
from ridgeline.metrics.latency import merged_metrics, request_metrics
from ridgeline.outputs import (
    CompletionOutput,
    FinishReason,
    Logprob,
    LogprobsAtPosition,
    RequestMetrics,
    RequestOutput,
)
from ridgeline.tokenizer.detokenizer import Detokenizer
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer
from ridgeline.tokenizer.stop_strings import StopStringMatcher


@dataclass(slots=True)
class _HeldToken:
    """A token whose text is not wholly released; `text_end` counts characters before stop matching."""

    token_id: int
    logprobs: LogprobsAtPosition | None
    text_end: int


@dataclass(slots=True)
class _Choice:
    """The text side of one Request."""

    request: Request
    detokenizer: Detokenizer
    matcher: StopStringMatcher
    held: deque[_HeldToken] = field(default_factory=deque)
    token_times_s: list[float] = field(default_factory=list)
    num_chars_pushed: int = 0
    num_chars_released: int = 0
    cumulative_logprob: float = 0.0
    stop_string: str | None = None
    is_over: bool = False


@dataclass(slots=True)
class _Group:
    """All choices of one prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    choices: list[_Choice]
    prompt_logprobs: list[LogprobsAtPosition | None] | None
    num_open_choices: int


class OutputProcessor:
    """Turns engine outputs into `RequestOutput` deltas. The only writer of text and stop state.

    A token, its logprobs and its text leave together: while text is held back (an unfinished
    character, a possible stop string), so are its tokens.
    """

    def __init__(self, tokenizer: Tokenizer, engine: Engine) -> None:
        self._tokenizer = tokenizer
        self._engine = engine
        self._groups: dict[str, _Group] = {}
        self._places: dict[str, tuple[_Group, _Choice]] = {}

    def add(self, request_id: str, prompt: str | None, requests: Sequence[Request]) -> None:
        """Register the requests that serve one prompt, before their first step."""
        first = requests[0]
        wants_prompt_logprobs = first.sampling_params.prompt_logprobs is not None
        group = _Group(
            request_id,
            prompt,
            list(first.prompt_token_ids),
            [self._new_choice(request) for request in requests],
            [None] if wants_prompt_logprobs else None,
            num_open_choices=len(requests),
        )
        self._groups[request_id] = group
        for choice in group.choices:
            self._places[choice.request.request_id] = (group, choice)

    def request_ids(self) -> list[str]:
        """Prompts that are not over, oldest first."""
        return list(self._groups)

    def groups_of(self, request_ids: Iterable[str]) -> list[str]:
        """The prompts that these engine requests serve, each once."""
        places = (self._places.get(request_id) for request_id in request_ids)
        return list(dict.fromkeys(place[0].request_id for place in places if place is not None))

    def abort(
        self, request_id: str, finish_reason: FinishReason = FinishReason.ABORT
    ) -> RequestOutput | None:
        """End all choices of a prompt now; the last delta, or None when it is unknown or over."""
        group = self._groups.get(request_id)
        if group is None:
            return None
        completions = []
        for choice in group.choices:
            if not choice.is_over:
                self._engine.finish_request(choice.request.request_id, finish_reason)
                completions.append(self._closed(group, choice, ""))
        return self._delta(group, completions)

    def process(self, engine_outputs: Iterable[EngineOutput]) -> list[RequestOutput]:
        """Deltas of one step, one per prompt that released anything, in the order of the batch."""
        completions: dict[str, list[CompletionOutput]] = {}
        for output in engine_outputs:
            place = self._places.get(output.request.request_id)
            if place is None:
                continue
            group, choice = place
            if choice.is_over:
                continue
            if output.prompt_logprobs and group.prompt_logprobs is not None:
                group.prompt_logprobs += [self._logprobs(entry) for entry in output.prompt_logprobs]
            if output.token_id is not None or output.request.is_finished:
                delta = self._push(group, choice, output)
                if delta is not None:
                    completions.setdefault(group.request_id, []).append(delta)
        return [self._delta(self._groups[request_id], deltas) for request_id, deltas in completions.items()]

    def _new_choice(self, request: Request) -> _Choice:
        params = request.sampling_params
        return _Choice(
            request,
            Detokenizer(self._tokenizer, skip_special_tokens=params.skip_special_tokens, continues_text=True),
            StopStringMatcher(params.stop, include_stop_str_in_output=params.include_stop_str_in_output),
        )

    def _push(self, group: _Group, choice: _Choice, output: EngineOutput) -> CompletionOutput | None:
        """Take a step's tokens; their delta, or None while everything is held back."""
        text = ""
        if output.token_id is not None:
            logprobs = None
            if output.logprobs is not None:
                logprobs = self._logprobs(output.logprobs)
                choice.cumulative_logprob += logprobs[output.token_id].logprob
            text = self._read(choice, output.token_id, logprobs, output.emitted_at_s)
        for token_id in output.forced_token_ids:
            if choice.stop_string is None:
                text += self._read(choice, token_id, None, output.emitted_at_s)
        if choice.request.is_finished:
            return self._closed(group, choice, text)
        choice.num_chars_released += len(text)
        return self._released(choice, text)

    def _read(
        self, choice: _Choice, token_id: int, logprobs: LogprobsAtPosition | None, emitted_at_s: float
    ) -> str:
        """Take one token; the text that it releases. A stop string in it ends the request."""
        request = choice.request
        choice.token_times_s.append(emitted_at_s)
        detokenizer = choice.detokenizer
        text = "" if self._is_hidden_stop(request, token_id) else detokenizer.push(token_id)
        choice.num_chars_pushed += len(text)
        text_end = choice.num_chars_pushed + int(detokenizer.has_incomplete_character)
        choice.held.append(_HeldToken(token_id, logprobs, text_end))
        if len(choice.token_times_s) > request.sampling_params.min_tokens:
            text, choice.stop_string = choice.matcher.push(text)
            if choice.stop_string is not None:
                self._engine.finish_request(
                    request.request_id, FinishReason.STOP, stop_reason=choice.stop_string
                )
        return text

    def _released(self, choice: _Choice, text: str) -> CompletionOutput | None:
        tokens, held = [], choice.held
        while held and held[0].text_end <= choice.num_chars_released:
            tokens.append(held.popleft())
        if not tokens and not text:
            return None
        return self._completion(choice, text, tokens)

    def _closed(self, group: _Group, choice: _Choice, text: str) -> CompletionOutput:
        """The last delta. A stop string wins over a limit that the same token reached."""
        choice.is_over = True
        group.num_open_choices -= 1
        if choice.stop_string is None:
            text += self._flushed(choice)
        stop_string = choice.stop_string
        tokens = list(choice.held)
        choice.held.clear()
        completion = self._completion(choice, text, tokens)
        request = choice.request
        completion.finish_reason = request.finish_reason if stop_string is None else FinishReason.STOP
        completion.stop_reason = request.stop_reason if stop_string is None else stop_string
        return completion

    def _flushed(self, choice: _Choice) -> str:
        """What was held back; the replacement of a last, incomplete character may complete a stop string."""
        text = choice.detokenizer.finish()
        if len(choice.token_times_s) <= choice.request.sampling_params.min_tokens:
            return choice.matcher.finish() + text
        match = choice.matcher.push(text)
        choice.stop_string = match.matched
        return match.text_to_emit + choice.matcher.finish()

    def _completion(self, choice: _Choice, text: str, tokens: list[_HeldToken]) -> CompletionOutput:
        request = choice.request
        has_logprobs = request.sampling_params.logprobs is not None
        return CompletionOutput(
            index=request.choice_index,
            text=text,
            token_ids=[token.token_id for token in tokens],
            logprobs=[t.logprobs for t in tokens if t.logprobs is not None] if has_logprobs else None,
            cumulative_logprob=choice.cumulative_logprob if has_logprobs else None,
        )

    def _delta(self, group: _Group, completions: list[CompletionOutput]) -> RequestOutput:
        finished = group.num_open_choices == 0
        metrics: RequestMetrics | None = None
        if finished:
            metrics = merged_metrics([request_metrics(c.request, c.token_times_s) for c in group.choices])
            del self._groups[group.request_id]
            for choice in group.choices:
                del self._places[choice.request.request_id]
        prompt_logprobs = group.prompt_logprobs
        if prompt_logprobs is not None and group.choices[0].token_times_s:
            group.prompt_logprobs = None
        else:
            prompt_logprobs = None
        return RequestOutput(
            group.request_id,
            group.prompt,
            group.prompt_token_ids,
            completions,
            finished,
            prompt_logprobs,
            metrics,
        )

    def _is_hidden_stop(self, request: Request, token_id: int) -> bool:
        """EOS and stop tokens stand in `token_ids`, not in the text (unless asked for)."""
        return (
            request.finish_reason is FinishReason.STOP
            and request.output_token_ids[-1] == token_id
            and not request.sampling_params.include_stop_str_in_output
        )

    def _logprobs(self, entry: TokenLogprobs) -> LogprobsAtPosition:
        token_text = self._tokenizer.token_text
        return {
            token_id: Logprob(logprob, rank, token_text(token_id))
            for token_id, logprob, rank in zip(entry.token_ids, entry.logprobs, entry.ranks, strict=True)
        }
