"""The one place where concrete parts meet: a config becomes an engine."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from ridgeline.config.engine import EngineConfig, EngineLimits
from ridgeline.config.machine import available_memory_bytes, cpu_limits
from ridgeline.config.model import ModelConfig
from ridgeline.core.block_pool import BlockPool
from ridgeline.core.events import EventRecorder
from ridgeline.core.kv_cache_manager import KVCacheManager, num_blocks_for
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.clock import Clock
from ridgeline.engine.engine import Engine
from ridgeline.engine.input_processor import InputProcessor
from ridgeline.engine.output_processor import OutputProcessor
from ridgeline.engine.request_streams import RequestStreams
from ridgeline.errors import ConfigError, ModelFileError
from ridgeline.formats.gguf import open_gguf
from ridgeline.hub.catalogue import CATALOGUE
from ridgeline.hub.store import resolve_model
from ridgeline.metrics.event_log import EventLog
from ridgeline.model.forward import Forward
from ridgeline.model.kv_cache import kv_block_bytes
from ridgeline.model.native_forward import NativeForward
from ridgeline.model.reference_forward import ReferenceForward
from ridgeline.model.runner import ModelRunner
from ridgeline.model.weights import ModelWeights, load_weights
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer, build_tokenizer

_logger = logging.getLogger("ridgeline")
_KV_ITEMSIZE = {"native": 2, "reference": 4}
_KV_SHARE_OF_MEMORY = 0.25


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A running engine and what stands around it."""

    config: EngineConfig
    model_path: Path
    model_name: str
    model: ModelConfig
    weights_bytes: int
    weights_format: str
    kv_block_bytes: int
    num_threads: int
    limits: EngineLimits
    tokenizer: Tokenizer
    input_processor: InputProcessor
    request_streams: RequestStreams
    engine: Engine
    event_log: EventLog


def build_engine(config: EngineConfig, *, home: Path, clock: Clock) -> EngineParts:
    """Open the model, size the KV cache, start the executor.

    Raises:
        ModelNotFoundError, ModelFileError: no such model, or its file can't be used.
        ConfigError: the settings ask for more than the model or the machine has.
    """
    path = resolve_model(config.model, home)
    file = open_gguf(path)
    weights = load_weights(file)
    tokenizer = build_tokenizer(file.metadata, path=path, chat_template=config.chat_template)
    if tokenizer.vocab_size != weights.config.vocab_size:
        raise ModelFileError(
            path,
            f"{tokenizer.vocab_size} tokens, but {weights.config.vocab_size} rows of embedding",
            "download or convert it again",
        )
    block_bytes = kv_block_bytes(
        weights.config, block_size=config.block_size, itemsize=_KV_ITEMSIZE[config.executor]
    )
    limits = _limits(config, weights.config, block_bytes)
    num_threads = config.num_threads or cpu_limits().num_threads
    forward = _forward(config, weights, limits, num_threads, clock)
    recorder = EventRecorder()
    kv_cache_manager = KVCacheManager(BlockPool(limits.num_blocks), config.block_size, recorder)
    event_log = EventLog(config.max_num_events)
    engine = Engine(
        Scheduler(config.scheduler, kv_cache_manager, recorder),
        ModelRunner(forward, clock.now),
        clock,
        recorder=recorder,
        listeners=[event_log],
    )
    input_processor = InputProcessor(tokenizer, limits)
    return EngineParts(
        config=config,
        model_path=path,
        model_name=config.model if config.model in CATALOGUE else path.stem,
        model=weights.config,
        weights_bytes=weights.stored_bytes,
        weights_format=weights.main_format,
        kv_block_bytes=block_bytes,
        num_threads=num_threads,
        limits=limits,
        tokenizer=tokenizer,
        input_processor=input_processor,
        request_streams=RequestStreams(engine, input_processor, OutputProcessor(tokenizer, engine)),
        engine=engine,
        event_log=event_log,
    )


def _forward(
    config: EngineConfig, weights: ModelWeights, limits: EngineLimits, num_threads: int, clock: Clock
) -> Forward:
    num_blocks, block_size = limits.num_blocks, limits.block_size
    if config.executor == "reference":
        return ReferenceForward(weights, clock.now, num_blocks=num_blocks, block_size=block_size)
    return NativeForward(weights, num_blocks=num_blocks, block_size=block_size, num_threads=num_threads)


def _limits(config: EngineConfig, model: ModelConfig, block_bytes: int) -> EngineLimits:
    """Blocks and context length that agree with each other and with the memory there is."""
    max_model_len = config.max_model_len or model.context_len
    if max_model_len > model.context_len:
        raise ConfigError(
            "max_model_len", max_model_len, f"the model was made for {model.context_len}; give at most that"
        )
    available_bytes = available_memory_bytes()
    kv_cache_bytes = config.kv_cache_bytes
    if kv_cache_bytes is None:
        wanted_blocks = config.scheduler.max_num_seqs * num_blocks_for(max_model_len, config.block_size)
        kv_cache_bytes = min(int(available_bytes * _KV_SHARE_OF_MEMORY), wanted_blocks * block_bytes)
    elif kv_cache_bytes > available_bytes:
        raise ConfigError("kv_cache_bytes", kv_cache_bytes, f"only {available_bytes} bytes are available")
    num_blocks = kv_cache_bytes // block_bytes
    if num_blocks < 1:
        remedy = f"a block of {config.block_size} tokens takes {block_bytes} bytes; give at least that"
        raise ConfigError("kv_cache_bytes", kv_cache_bytes, remedy)
    capacity = num_blocks * config.block_size
    if capacity < max_model_len:
        _logger.warning(
            "max_model_len is %d instead of %d: the KV cache of %d bytes holds %d blocks of %d tokens",
            *(capacity, max_model_len, kv_cache_bytes, num_blocks, config.block_size),
        )
        max_model_len = capacity
    return EngineLimits(
        vocab_size=model.vocab_size,
        max_model_len=max_model_len,
        block_size=config.block_size,
        num_blocks=num_blocks,
    )
