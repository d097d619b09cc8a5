"""The sampling parameters of a request's body, in OpenAI's and vLLM's names."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from ridgeline.errors import RequestError
from ridgeline.sampling_params import SamplingParams
from ridgeline.server.output_form import output_form, renamed

MAX_PROMPT_LOGPROBS = 1_000_000
"""Most logprobs of prompts in one answer, which each of `n` choices repeats: some 60 MB."""
_PLAIN = (
    *("n", "temperature", "top_p", "top_k", "min_p", "seed", "logit_bias"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens"),
    *("prompt_logprobs", "skip_special_tokens"),
)


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream tells besides text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields of both completions and chat completions; null is as good as absent."""

    logprobs_field: ClassVar[str] = "logprobs"
    """The field with the number of logprobs a token."""
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = None
    timeout: float | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None

    @property
    def form_field(self) -> str:
        """The field that asks for a form of the text, where one does."""
        names = ("text", "response_format", "structured_outputs")
        return next((name for name in names if getattr(self, name, None)), "tools")

    def renamed(self, error: RequestError) -> RequestError:
        """The error under the name of the field that the caller wrote."""
        return renamed(error, self.response_format)


def sampling_params(
    fields: SamplingFields, *, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """The parameters of one request, checked.

    Raises:
        RequestError: a value is out of range.
    """
    values = {name: getattr(fields, name) for name in _PLAIN if getattr(fields, name) is not None}
    form = output_form(fields.response_format, fields.structured_outputs)
    return SamplingParams(**values, max_tokens=max_tokens, logprobs=logprobs, structured_outputs=form)


def check_logprobs(fields: SamplingFields, params: SamplingParams, max_logprobs: int) -> None:
    """A whole vocabulary at each token is megabytes a token: one request could take all memory.

    Raises:
        RequestError: more logprobs are asked for than the server gives.
    """
    asked = ((fields.logprobs_field, params.logprobs), ("prompt_logprobs", params.prompt_logprobs))
    for name, count in asked:
        if max_logprobs >= 0 and count is not None and not 0 <= count <= max_logprobs:
            remedy = (
                f"at most {max_logprobs} a token here; the server's --max-logprobs raises it, -1 lifts it"
            )
            raise RequestError(name, count, remedy)


def check_prompt_logprobs(params: SamplingParams, num_prompt_tokens: int) -> None:
    """Bound what one answer holds of its prompts.

    Raises:
        RequestError: tokens × logprobs × choices are too many.
    """
    if params.prompt_logprobs is None:
        return
    asked = num_prompt_tokens * (params.prompt_logprobs + 1) * params.n
    if asked > MAX_PROMPT_LOGPROBS:
        remedy = (
            f"{asked} logprobs in one answer, at most {MAX_PROMPT_LOGPROBS}: ask for less, or a smaller n"
        )
        raise RequestError("prompt_logprobs", params.prompt_logprobs, remedy)


def check_stream_options(fields: SamplingFields) -> None:
    """Stream options go with a stream.

    Raises:
        RequestError: there are some, but no stream.
    """
    if fields.stream_options is not None and not fields.stream:
        raise RequestError("stream_options", {}, "only with stream: true")
    if fields.cache_salt == "":
        raise RequestError("cache_salt", "", "must be text, not empty")
