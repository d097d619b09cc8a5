"""LLM: prompts in, completions out, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from ridgeline.build import EngineParts, build_engine
from ridgeline.config.engine import EngineConfig
from ridgeline.config.env import home_dir
from ridgeline.config.scheduler import SchedulerConfig
from ridgeline.engine.clock import MonotonicClock
from ridgeline.engine.conversation import TemplateOptions, chat_ids
from ridgeline.engine.engine import EngineStats
from ridgeline.engine.input_processor import ParsedPrompt, Prompt, as_prompt_list, with_priorities
from ridgeline.engine.progress import ProgressBar
from ridgeline.errors import ConfigError, RequestError
from ridgeline.outputs import CompletionOutput, RequestOutput
from ridgeline.sampling_params import SamplingParams
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer

Message = Mapping[str, object]


class LLM:
    """A loaded model. Close it, use it as a context manager, or drop it to give the memory back.

    Not thread-safe: use it from one thread at a time.

    Args:
        model: catalogue name, `hf:org/repo[:file]` as pulled, or path of a .gguf file.
        executor: `native`, or `reference`: NumPy in float32, exact and some ten times slower.
        num_threads: CPU threads; None takes the physical cores this process may use.
        block_size: tokens per KV block: 16, 32 or 64.
        max_model_len: most tokens of prompt and output together; None takes the model's own.
        kv_cache_bytes: K and V of all layers; None takes at most a quarter of the available memory.
        max_num_seqs: most requests running at once.
        max_num_batched_tokens: most tokens computed in one step.
        enable_prefix_caching: whether requests may share blocks.
        long_prefill_token_threshold, max_num_partial_prefills, max_long_partial_prefills,
            scheduling_policy, priority_aging_s, watermark: see `SchedulerConfig`.
        chat_template: text of a Jinja2 template to use instead of the model's.
    """

    def __init__(  # noqa: PLR0913 - the public door takes every setting by name
        self,
        model: str = "smollm2-135m-instruct",
        *,
        executor: str = "native",
        num_threads: int | None = None,
        block_size: int = 32,
        max_model_len: int | None = None,
        kv_cache_bytes: int | None = None,
        max_num_seqs: int = 32,
        max_num_batched_tokens: int = 512,
        enable_prefix_caching: bool = True,
        long_prefill_token_threshold: int = 0,
        max_num_partial_prefills: int = 2,
        max_long_partial_prefills: int = 1,
        scheduling_policy: str = "fcfs",
        priority_aging_s: float = 30.0,
        watermark: float = 0.01,
        chat_template: str | None = None,
    ) -> None:
        """Load a model; the settings are those of the class's docstring.

        Raises:
            ModelNotFoundError, ModelFileError: no such model, or its file can't be used.
            ConfigError: a setting is out of range or asks for more than there is.
        """
        config = EngineConfig(
            model=model,
            executor=executor,
            num_threads=num_threads,
            block_size=block_size,
            max_model_len=max_model_len,
            kv_cache_bytes=kv_cache_bytes,
            enable_prefix_caching=enable_prefix_caching,
            chat_template=chat_template,
            scheduler=SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                long_prefill_token_threshold=long_prefill_token_threshold,
                max_num_partial_prefills=max_num_partial_prefills,
                max_long_partial_prefills=max_long_partial_prefills,
                scheduling_policy=scheduling_policy,
                priority_aging_s=priority_aging_s,
                watermark=watermark,
            ),
        )
        self._clock = MonotonicClock()
        self._parts: EngineParts | None = build_engine(config, home=home_dir(), clock=self._clock)

    @property
    def parts(self) -> EngineParts:
        """The running engine and what stands around it: model, limits, event log.

        Raises:
            ConfigError: the LLM was closed.
        """
        if self._parts is None:
            raise ConfigError("llm", "closed", "make a new LLM")
        return self._parts

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.parts.tokenizer

    @property
    def stats(self) -> EngineStats:
        """Requests and blocks right now."""
        return self.parts.engine.stats

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Complete raw prompts; one output per prompt, in their order.

        A prompt is text, a list of token ids, or a dict with `prompt` or `prompt_token_ids` and perhaps
        `cache_salt`; `prompts` is one of these or a list of them. `sampling_params` and `priority` (lower
        is more urgent) are one for all or a list of one each. Several prompts show a progress bar on a
        terminal, unless `progress` is false.

        Raises:
            RequestError: a prompt or a parameter can't be served; nothing was run.
        """
        arrived_at_s = self._clock.now()
        parsed = self.parts.input_processor.parse_prompts(as_prompt_list(prompts))
        parsed = with_priorities(parsed, priority)
        return self._run(parsed, sampling_params, arrived_at_s, progress=progress)

    def chat(  # noqa: PLR0913 - vLLM's arguments
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        cache_salt: str | None = None,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of a list of them, through the model's chat template.

        The model's turn is opened unless `add_generation_prompt` is false or, by `continue_final_message`,
        the answer goes on with the last message. `tools` are functions as OpenAI writes them: the model is
        told of them, and its calls stand in the text. `chat_template_kwargs` are further names for the
        template.

        Raises:
            RequestError: messages, tools or parameters can't be served, the options contradict each other,
                or the model has no chat template.
        """
        arrived_at_s = self._clock.now()
        many = isinstance(messages, list | tuple) and bool(messages) and isinstance(messages[0], list | tuple)
        options = TemplateOptions(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
        )
        parsed = [
            self._parse_chat(conversation, options, tools=tools, cache_salt=cache_salt)
            for conversation in (messages if many else [messages])
        ]
        return self._run(parsed, sampling_params, arrived_at_s, progress=progress)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, *, priority: int = 0
    ) -> Iterator[RequestOutput]:
        """Complete one raw prompt; yields deltas, the last one with `finished` and `metrics`.

        Closing the iterator aborts the request. Several streams may be read in turn.

        Raises:
            RequestError: as `generate`, at the call.
        """
        arrived_at_s = self._clock.now()
        (parsed,) = with_priorities([self.parts.input_processor.parse_prompt(prompt)], priority)
        return self._stream(parsed, _params_for(1, sampling_params)[0], arrived_at_s)

    def stream_chat(  # noqa: PLR0913 - those of `chat`
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        cache_salt: str | None = None,
    ) -> Iterator[RequestOutput]:
        """Answer one conversation as `chat` does; yields deltas as `stream` does."""
        arrived_at_s = self._clock.now()
        options = TemplateOptions(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
        )
        parsed = self._parse_chat(messages, options, tools=tools, cache_salt=cache_salt)
        return self._stream(parsed, _params_for(1, sampling_params)[0], arrived_at_s)

    def reset_prefix_cache(self) -> None:
        """Let nothing computed so far be found again; what is running goes on."""
        self.parts.engine.reset_prefix_cache()

    def close(self) -> None:
        """Abort what is running and give threads and memory back; closing twice is fine."""
        if self._parts is not None:
            self._parts.request_streams.abort_all()
            self._parts.engine.close()
            self._parts = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _parse_chat(
        self, messages: object, options: TemplateOptions, *, tools: object, cache_salt: str | None
    ) -> ParsedPrompt:
        token_ids = chat_ids(
            self.tokenizer, messages, options=options, tools=tools, model_name=self.parts.model_name
        )
        prompt = {"prompt_token_ids": token_ids, "cache_salt": cache_salt}
        return self.parts.input_processor.parse_prompt(prompt)

    def _run(
        self,
        prompts: list[ParsedPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        arrived_at_s: float,
        *,
        progress: bool,
    ) -> list[RequestOutput]:
        params = _params_for(len(prompts), sampling_params)
        self.parts.input_processor.check_requests(prompts, params)
        streams = self.parts.request_streams
        ids: list[str] = []
        try:
            for prompt, prompt_params in zip(prompts, params, strict=True):
                ids.append(streams.new_request_id())
                streams.add(ids[-1], prompt, prompt_params, arrived_at_s=arrived_at_s)
            with ProgressBar(len(ids), shown=progress and len(ids) > 1) as bar:
                whole = [
                    _empty_output(request_id, prompt, prompt_params)
                    for request_id, prompt, prompt_params in zip(ids, prompts, params, strict=True)
                ]
                for output in whole:
                    while not output.finished:
                        output.extend(streams.next_delta(output.request_id))
                    bar.advance()
        finally:
            for request_id in ids:
                streams.abort(request_id)
        return whole

    def _stream(
        self, prompt: ParsedPrompt, params: SamplingParams, arrived_at_s: float
    ) -> Iterator[RequestOutput]:
        self.parts.input_processor.check_requests([prompt], [params])
        return self._deltas(prompt, params, arrived_at_s)

    def _deltas(
        self, prompt: ParsedPrompt, params: SamplingParams, arrived_at_s: float
    ) -> Iterator[RequestOutput]:
        streams = self.parts.request_streams
        request_id = streams.new_request_id()
        try:
            streams.add(request_id, prompt, params, arrived_at_s=arrived_at_s)
            finished = False
            while not finished:
                delta = streams.next_delta(request_id)
                finished = delta.finished
                yield delta
        finally:
            streams.abort(request_id)


def _empty_output(request_id: str, prompt: ParsedPrompt, params: SamplingParams) -> RequestOutput:
    completions = [CompletionOutput(index, "", []) for index in range(params.n)]
    return RequestOutput(request_id, prompt.text, prompt.token_ids, completions, finished=False)


def _params_for(
    num_prompts: int, sampling_params: SamplingParams | Sequence[SamplingParams] | None
) -> list[SamplingParams]:
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        return [sampling_params or SamplingParams()] * num_prompts
    if not isinstance(sampling_params, Sequence) or len(sampling_params) != num_prompts:
        remedy = f"give one SamplingParams, or a list of one for each prompt ({num_prompts})"
        raise RequestError("sampling_params", sampling_params, remedy)
    for params in sampling_params:
        if not isinstance(params, SamplingParams):
            raise RequestError("sampling_params", params, "every entry must be SamplingParams")
    return list(sampling_params)
