"""InputProcessor: a prompt and SamplingParams become Requests, or a RequestError that says why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.config.engine import EngineLimits
from ridgeline.core.kv_cache_manager import num_blocks_for
from ridgeline.core.request import Request
from ridgeline.errors import ContextLengthError, RequestError
from ridgeline.grammar.compiler import GrammarCompiler
from ridgeline.grammar.matcher import CompiledGrammar
from ridgeline.sampling.rng import draw_seed
from ridgeline.sampling_params import SamplingParams
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer

_BYTES = bytes | bytearray | memoryview

Prompt = str | Sequence[int] | Mapping[str, object]
"""Text, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`."""

_PROMPT_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    """A prompt as the engine takes it; `text` is None when ids were given.

    Only prompts with one `cache_salt` share cached blocks; lower `priority` is more urgent.
    """

    text: str | None
    token_ids: list[int]
    cache_salt: str | None = None
    priority: int = 0


class InputProcessor:
    """Tokenises and checks prompts, compiles grammars, and makes one Request per choice."""

    def __init__(self, tokenizer: Tokenizer, limits: EngineLimits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._grammar_compiler = GrammarCompiler(tokenizer)

    @property
    def max_num_prompt_tokens(self) -> int:
        """Longest prompt that leaves room for a token of output."""
        return self._limits.max_model_len - 1

    def parse_prompt(self, prompt: object) -> ParsedPrompt:
        """Take `"text"`, `[ids]`, or a dict with `prompt` or `prompt_token_ids` and perhaps `cache_salt`.

        Text gets the BOS that the model's file asks for, and no chat template.

        Raises:
            RequestError: another shape, no tokens, or an id outside the vocabulary, or text that is
                so long that it can't fit, which is told before it is tokenised.
        """
        if isinstance(prompt, str):
            self._tokenizer.check_fits(prompt, self.max_num_prompt_tokens)
            return self._checked(ParsedPrompt(prompt, self._tokenizer.encode_prompt(prompt)), "prompt")
        if isinstance(prompt, dict):
            return self._parse_dict(prompt)
        if isinstance(prompt, Sequence) and not isinstance(prompt, _BYTES):
            if prompt and not isinstance(prompt[0], int):
                raise RequestError("prompt", prompt, "give one prompt: text, token ids, or a dict of one")
            return self.parse_prompt_ids(prompt)
        raise RequestError("prompt", prompt, "must be text, token ids, or a dict with one of them")

    def parse_prompts(self, prompts: Sequence[object]) -> list[ParsedPrompt]:
        """`parse_prompt` of each; an error says which of several prompts it is about."""
        parsed = []
        for index, prompt in enumerate(prompts):
            try:
                parsed.append(self.parse_prompt(prompt))
            except RequestError as error:
                raise _of_prompt(error, index, len(prompts)) from None
        return parsed

    def parse_prompt_ids(self, token_ids: object) -> ParsedPrompt:
        """Take a list of token ids as it is.

        Raises:
            RequestError: not a list of ids of this vocabulary, or empty.
        """
        return self._checked(_from_ids(token_ids), "prompt_token_ids")

    def check_request(self, prompt: ParsedPrompt, params: SamplingParams) -> None:
        """Check length and the parameters that depend on the model.

        Raises:
            RequestError: the prompt is too long, a field names tokens that don't exist, or the output can't
                be made to follow `structured_outputs`.
        """
        self._check_length(prompt)
        self._check_params(params)
        self._grammar_of(params)

    def check_requests(self, prompts: Sequence[ParsedPrompt], params: Sequence[SamplingParams]) -> None:
        """`check_request` of each; an error says which of several prompts it is about."""
        for index, (prompt, prompt_params) in enumerate(zip(prompts, params, strict=True)):
            try:
                self.check_request(prompt, prompt_params)
            except RequestError as error:
                raise _of_prompt(error, index, len(prompts)) from None

    def make_requests(
        self, prompt: ParsedPrompt, params: SamplingParams, *, request_id: str, arrived_at_s: float
    ) -> list[Request]:
        """One Request per choice; they share the prompt and the seed, not the choice index.

        Raises:
            RequestError: as `check_request`.
        """
        self.check_request(prompt, params)
        grammar = self._grammar_of(params)
        seed = draw_seed() if params.seed is None else params.seed
        num_prompt_tokens = len(prompt.token_ids)
        max_num_tokens = self._limits.max_model_len
        if params.max_tokens is not None:
            max_num_tokens = min(max_num_tokens, num_prompt_tokens + params.max_tokens)
        return [
            Request(
                request_id=engine_request_id,
                prompt_token_ids=prompt.token_ids,
                sampling_params=params if choice_index == 0 else replace(params, prompt_logprobs=None),
                arrived_at_s=arrived_at_s,
                seed=seed,
                max_num_tokens=max_num_tokens,
                choice_index=choice_index,
                eos_token_ids=self._tokenizer.eos_token_ids,
                priority=prompt.priority,
                cache_salt=prompt.cache_salt,
                fork_of=f"{request_id}-0" if choice_index > 0 else None,
                grammar=grammar,
            )
            for choice_index, engine_request_id in enumerate(engine_request_ids(request_id, params.n))
        ]

    def _grammar_of(self, params: SamplingParams) -> CompiledGrammar | None:
        wanted = params.structured_outputs
        return self._grammar_compiler.compile(wanted) if wanted is not None else None

    def _parse_dict(self, prompt: dict[object, object]) -> ParsedPrompt:
        keys = set(prompt)
        if len(keys & {"prompt", "prompt_token_ids"}) != 1 or keys - _PROMPT_KEYS:
            remedy = "the keys are prompt or prompt_token_ids, and cache_salt if wanted"
            raise RequestError("prompt", sorted(map(str, prompt)), remedy)
        cache_salt = prompt.get("cache_salt")
        if cache_salt is not None and (not isinstance(cache_salt, str) or not cache_salt):
            raise RequestError("cache_salt", cache_salt, "must be text, not empty")
        if "prompt_token_ids" in prompt:
            parsed = self.parse_prompt_ids(prompt["prompt_token_ids"])
        elif isinstance(prompt["prompt"], str):
            parsed = self.parse_prompt(prompt["prompt"])
        else:
            raise RequestError("prompt", prompt["prompt"], "must be text")
        return replace(parsed, cache_salt=cache_salt)

    def _checked(self, prompt: ParsedPrompt, field: str) -> ParsedPrompt:
        if not prompt.token_ids:
            raise RequestError(
                field, prompt.text if prompt.text is not None else [], "holds no tokens; give at least one"
            )
        vocab_size = self._limits.vocab_size
        # Two passes of the interpreter's own are ten times faster than a loop over a long prompt.
        if min(prompt.token_ids) < 0 or max(prompt.token_ids) >= vocab_size:
            stranger = next(i for i in prompt.token_ids if not 0 <= i < vocab_size)
            raise RequestError(field, stranger, f"token ids of this model are 0…{vocab_size - 1}")
        return prompt

    def _check_length(self, prompt: ParsedPrompt) -> None:
        num_prompt_tokens, limits = len(prompt.token_ids), self._limits
        if num_prompt_tokens < limits.max_model_len:
            return
        remedy = f"must leave room for one token: max_model_len is {limits.max_model_len} tokens"
        num_blocks = num_blocks_for(num_prompt_tokens, limits.block_size)
        if num_blocks > limits.num_blocks:
            remedy += (
                f"; it needs {num_blocks} blocks of {limits.block_size}, the KV cache has "
                f"{limits.num_blocks} (raise kv_cache_bytes)"
            )
        raise ContextLengthError("prompt", f"{num_prompt_tokens} tokens", remedy)

    def _check_params(self, params: SamplingParams) -> None:
        vocab_size = self._limits.vocab_size
        for field, token_ids in (
            ("logit_bias", params.logit_bias),
            ("stop_token_ids", params.stop_token_ids),
        ):
            for token_id in token_ids:
                if token_id >= vocab_size:
                    raise RequestError(field, token_id, f"token ids of this model are 0…{vocab_size - 1}")
        for field in ("logprobs", "prompt_logprobs"):
            count = getattr(params, field)
            if count is not None and count > vocab_size:
                raise RequestError(field, count, f"at most the vocabulary, {vocab_size}; -1 means all")


def engine_request_ids(request_id: str, num_choices: int) -> list[str]:
    """What the engine calls the requests of one prompt: one for each choice."""
    if num_choices == 1:
        return [request_id]
    return [f"{request_id}-{choice_index}" for choice_index in range(num_choices)]


def as_prompt_list(prompts: object) -> list[object]:
    """One prompt or a list of them as a list; a list of whole numbers is one prompt of token ids.

    Raises:
        RequestError: an empty list, or no prompt at all.
    """
    if isinstance(prompts, str | dict | _BYTES) or not isinstance(prompts, Sequence):
        return [prompts]
    if not prompts:
        raise RequestError("prompt", prompts, "give at least one prompt")
    if all(isinstance(item, int) and not isinstance(item, bool) for item in prompts):
        return [prompts]
    return list(prompts)


def with_priorities(prompts: Sequence[ParsedPrompt], priority: object) -> list[ParsedPrompt]:
    """The prompts with one priority for all, or one each.

    Raises:
        RequestError: not a whole number, or not a list of one for each prompt.
    """
    priorities = list(priority) if isinstance(priority, list | tuple) else [priority] * len(prompts)
    if len(priorities) != len(prompts):
        raise RequestError("priority", priority, f"give one, or a list of {len(prompts)}")
    prioritised = []
    for prompt, value in zip(prompts, priorities, strict=True):
        if not isinstance(value, int) or isinstance(value, bool):
            raise RequestError("priority", value, "must be a whole number; lower is more urgent")
        prioritised.append(replace(prompt, priority=value))
    return prioritised


def _of_prompt(error: RequestError, index: int, count: int) -> RequestError:
    if count == 1:
        return error
    return type(error)(error.field, error.value, f"{error.remedy} (in prompts[{index}])")


def _from_ids(token_ids: object) -> ParsedPrompt:
    if isinstance(token_ids, str | _BYTES) or not isinstance(token_ids, Sequence):
        raise RequestError("prompt_token_ids", token_ids, "must be a list of token ids")
    for token_id in token_ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            raise RequestError("prompt_token_ids", token_id, "every token id must be a whole number")
    return ParsedPrompt(None, list(token_ids))
