"""AsyncLLM: the engine for programs with an event loop; what the HTTP server stands on."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import fields, replace
from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

from ridgeline.build import EngineParts, build_engine
from ridgeline.config.engine import EngineConfig
from ridgeline.config.env import home_dir
from ridgeline.config.scheduler import SchedulerConfig
from ridgeline.engine.async_engine import AsyncEngine, Submission
from ridgeline.engine.clock import Clock, MonotonicClock
from ridgeline.engine.conversation import TemplateOptions, chat_ids
from ridgeline.engine.delta_stream import DeltaStream
from ridgeline.engine.engine import EngineStats, EventListener
from ridgeline.engine.input_processor import ParsedPrompt, Prompt
from ridgeline.errors import ConfigError, EngineError
from ridgeline.outputs import FinishReason, RequestOutput
from ridgeline.sampling_params import SamplingParams
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer

NUM_TEXT_THREADS = 2
"""Threads that parse and tokenise prompts, beside the event loop and the engine."""

Message = Mapping[str, object]
_P = ParamSpec("_P")
_T = TypeVar("_T")


class AsyncLLM:
    """A loaded model, used from event loops; the engine steps in a thread of its own.

    Args:
        model: as `LLM`.
        listeners: get every event of the engine, in its thread.
        settings: as `LLM`.
    """

    def __init__(
        self,
        model: str = "smollm2-135m-instruct",
        *,
        listeners: Sequence[EventListener] = (),
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        """Load a model; blocks until it is there.

        Raises:
            ModelNotFoundError, ModelFileError: no such model, or its file can't be used.
            ConfigError: a setting is unknown, out of range or asks for more than there is.
        """
        self.clock = clock or MonotonicClock()
        config = _engine_config(model, settings)
        self.parts: EngineParts = build_engine(config, home=home_dir(), clock=self.clock, listeners=listeners)
        self.engine = AsyncEngine(self.parts.engine, self.parts.input_processor, self.parts.output_processor)
        self._text_threads = ThreadPoolExecutor(NUM_TEXT_THREADS, "ridgeline-text")
        self._is_closed = False

    @property
    def model_name(self) -> str:
        """The model's own name."""
        return self.parts.model_name

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.parts.tokenizer

    @property
    def failure(self) -> EngineError | None:
        """What ended the engine's thread, so that nothing can be computed; None while all is well."""
        return self.engine.failure

    async def stats(self) -> EngineStats:
        """Requests and blocks, as they are between two steps."""
        return await self.engine.call(lambda: self.parts.engine.stats)

    async def in_text_thread(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run text work where it holds up neither the event loop nor the engine."""
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._text_threads, call)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete one raw prompt; yields deltas, the last one with `finished` and `metrics`.

        Leaving the iterator early (`aclose`, or a cancelled task) aborts the request: its blocks are free
        before the next step. Deltas that are not read in time come merged. `deadline_s` seconds from now
        the request ends with reason `timeout`.

        Raises:
            RequestError: the request can't be served.
            EngineError: our own fault.
        """
        arrived_at_s, params = self.clock.now(), params or SamplingParams()
        parsed = await self.in_text_thread(self._parse, prompt, params)
        parsed = replace(parsed, cache_salt=cache_salt or parsed.cache_salt, priority=priority)
        submission = Submission(
            request_id or new_request_id("req"),
            parsed,
            params,
            arrived_at_s,
            arrived_at_s + deadline_s if deadline_s is not None else None,
        )
        async with aclosing(self.deltas([submission])) as deltas:
            async for delta in deltas:
                yield delta

    async def chat(  # noqa: PLR0913 - those of `LLM.chat`, and a request's
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        request_id: str | None = None,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one conversation as `LLM.chat` does; yields deltas as `generate` does.

        Raises:
            RequestError: messages, tools or parameters can't be served, or the options contradict each
                other.
        """
        options = TemplateOptions(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
        )
        token_ids = await self.in_text_thread(
            chat_ids,
            self.tokenizer,
            messages,
            options=options,
            tools=tools,
            model_name=self.model_name,
            max_num_tokens=self.parts.input_processor.max_num_prompt_tokens,
        )
        answer = self.generate(token_ids, params, request_id=request_id, deadline_s=deadline_s)
        async with aclosing(answer) as deltas:
            async for delta in deltas:
                yield delta

    def open(self, submissions: Sequence[Submission]) -> DeltaStream:
        """Start checked requests that are read together; `abort` them when no longer read.

        Raises:
            RequestError: a parameter does not go with the model or the length.
        """
        for submission in submissions:
            self.parts.input_processor.check_request(submission.prompt, submission.params)
        return self.engine.open(submissions)

    def _parse(self, prompt: Prompt, params: SamplingParams) -> ParsedPrompt:
        """Tokenise, and compile the grammar, which is found again when the request is opened."""
        parsed = self.parts.input_processor.parse_prompt(prompt)
        self.parts.input_processor.check_request(parsed, params)
        return parsed

    async def deltas(self, submissions: Sequence[Submission]) -> AsyncGenerator[RequestOutput, None]:
        """Deltas of requests that are read together; leaving early aborts them."""
        stream = self.open(submissions)
        try:
            while deltas := await stream.take():
                for delta in deltas:
                    yield delta
        finally:
            self.abort_unfinished(stream)

    def abort_unfinished(self, stream: DeltaStream) -> None:
        """End what is left of a stream that nobody reads any more."""
        if stream.unfinished and not self._is_closed:
            self.engine.abort(list(stream.unfinished))

    def abort(self, request_id: str) -> None:
        """End a request before the next step; its reader gets the last delta, with reason `abort`."""
        self.engine.abort([request_id])

    def finish_all(self, finish_reason: FinishReason) -> None:
        """End every request for this reason; its last output says so."""
        self.engine.finish_all(finish_reason)

    def close(self) -> None:
        """Abort what is running, end the threads and give memory back; closing twice is fine.

        The memory of an engine that has failed is kept: nobody knows what still uses it.
        """
        if not self._is_closed:
            self._is_closed = True
            self.engine.close()
            self._text_threads.shutdown(cancel_futures=True)
            if self.failure is None:
                self.parts.engine.close()


def new_request_id(prefix: str) -> str:
    """A fresh id such as `cmpl-…`."""
    return f"{prefix}-{uuid4().hex}"


def _engine_config(model: str, settings: Mapping[str, Any]) -> EngineConfig:
    known = {field.name for field in fields(EngineConfig)} - {"model", "scheduler"}
    of_scheduler = {field.name for field in fields(SchedulerConfig)}
    for name in settings:
        if name not in known | of_scheduler:
            raise ConfigError(name, settings[name], f"is no setting; they are {sorted(known | of_scheduler)}")
    scheduler = SchedulerConfig(**{name: settings[name] for name in settings if name in of_scheduler})
    engine = {name: settings[name] for name in settings if name in known}
    return EngineConfig(model=model, scheduler=scheduler, **engine)
