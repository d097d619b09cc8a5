"""An engine whose executor says what it is told, on a clock that ticks one second a reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ridgeline.config.engine import EngineLimits
from ridgeline.config.scheduler import SchedulerConfig
from ridgeline.core.block_pool import BlockPool
from ridgeline.core.events import EventRecorder
from ridgeline.core.kv_cache_manager import KVCacheManager
from ridgeline.core.prefix_cache import PrefixCache
from ridgeline.core.request import Request
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.step import ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from ridgeline.engine.engine import Engine
from ridgeline.engine.input_processor import InputProcessor
from ridgeline.engine.output_processor import OutputProcessor
from ridgeline.engine.request_streams import RequestStreams
from ridgeline.metrics.event_log import EventLog
from ridgeline.outputs import CompletionOutput, RequestOutput
from ridgeline.sampling_params import SamplingParams
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer, build_tokenizer

EOS, BYTES_START = 0, 2


def byte_tokens() -> list[str]:
    """The 256 byte tokens in GPT-2's spelling, by byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(b) if b in printable else chr(256 + others.index(b)) for b in range(256)]


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """Id 0 is EOS, id 1 another control token, id 2 + b the byte b."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["<|end|>", "<|start|>", *byte_tokens()],
        "tokenizer.ggml.token_type": [3, 3, *[1] * 256],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.bos_token_id": 1,
    }
    return build_tokenizer(metadata, path=Path("bytes.gguf"))


class TickingClock:
    """Every reading is one second after the last."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 1.0
        return self.seconds


@dataclass
class ScriptedExecutor:
    """Answers request i's output position p with scripts[i][p]; EOS after the script's end."""

    scripts: Mapping[str, Sequence[int]]
    error: Exception | None = None
    closed: bool = False
    num_steps: int = 0
    block_copies: list[tuple[tuple[int, int], ...]] = field(default_factory=list)

    def execute(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        self.num_steps += 1
        self.block_copies.append(tuple(scheduler_output.block_copies))
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        tokens = [self._token(i.request) if i.samples else None for i in scheduler_output.scheduled]
        logprobs = [
            TokenLogprobs([token, token], [-0.5, -0.5], [1, 1])
            if token is not None and item.request.sampling_params.logprobs is not None
            else None
            for token, item in zip(tokens, scheduler_output.scheduled, strict=True)
        ]
        return ModelRunnerOutput(tokens, logprobs, [()] * len(tokens), {"lm_head": 0.25})

    def _token(self, request: Request) -> int:
        script = self.scripts[request.request_id]
        position = request.num_output_tokens
        return script[position] if position < len(script) else EOS

    def close(self) -> None:
        self.closed = True


@dataclass
class Bench:
    """Everything a test wants to look at."""

    engine: Engine
    executor: ScriptedExecutor
    streams: RequestStreams
    inputs: InputProcessor
    log: EventLog
    clock: TickingClock
    deltas: dict[str, list[RequestOutput]] = field(default_factory=dict)

    def add(self, prompt: object = "hi", **params: object) -> str:
        parsed = self.inputs.parse_prompt(prompt)
        params.setdefault("max_tokens", 100)
        sampling = SamplingParams(**params)  # type: ignore[arg-type]
        request_id = self.streams.new_request_id()
        self.streams.add(request_id, parsed, sampling, arrived_at_s=self.clock.now())
        return request_id

    def run(self, request_id: str, num_choices: int = 1) -> RequestOutput:
        whole = RequestOutput(
            request_id, None, [], [CompletionOutput(i, "", []) for i in range(num_choices)], finished=False
        )
        self.deltas[request_id] = []
        while not whole.finished:
            delta = self.streams.next_delta(request_id)
            self.deltas[request_id].append(delta)
            whole.extend(delta)
        return whole

    def texts(self, request_id: str) -> list[str]:
        return [delta.outputs[0].text for delta in self.deltas[request_id]]


NewBench = Callable[..., Bench]


@pytest.fixture
def new_bench(byte_tokenizer: Tokenizer) -> NewBench:
    """Make an engine that gives the texts (or ids) of `scripts`, by request id."""

    def make(
        scripts: Mapping[str, str | Sequence[int]] | str = "",
        *,
        num_blocks: int = 64,
        max_num_seqs: int = 8,
        budget: int = 64,
        max_num_events: int = 1000,
        caching: bool = False,
    ) -> Bench:
        by_id = {"0": scripts} if isinstance(scripts, str) else scripts
        ids = {
            name: [BYTES_START + byte for byte in script.encode()] if isinstance(script, str) else script
            for name, script in by_id.items()
        }
        recorder, clock, executor = EventRecorder(), TickingClock(), ScriptedExecutor(ids)
        cache = PrefixCache(16) if caching else None
        manager = KVCacheManager(BlockPool(num_blocks), 16, recorder, prefix_cache=cache)
        config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget)
        log = EventLog(max_num_events)
        engine = Engine(
            Scheduler(config, manager, recorder), executor, clock, recorder=recorder, listeners=[log]
        )
        limits = EngineLimits(
            vocab_size=byte_tokenizer.vocab_size, max_model_len=400, block_size=16, num_blocks=num_blocks
        )
        inputs = InputProcessor(byte_tokenizer, limits)
        streams = RequestStreams(engine, inputs, OutputProcessor(byte_tokenizer, engine))
        return Bench(engine, executor, streams, inputs, log, clock)

    return make
