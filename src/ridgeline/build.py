"""The one place where concrete parts meet: a config becomes an engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.config.engine import EngineConfig, EngineLimits
from ridgeline.config.machine import available_memory_bytes, cpu_limits
from ridgeline.config.model import ModelConfig
from ridgeline.core.block_pool import BlockPool
from ridgeline.core.events import EventRecorder
from ridgeline.core.kv_cache_manager import KVCacheManager
from ridgeline.core.prefix_cache import PrefixCache
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.clock import Clock
from ridgeline.engine.engine import Engine, EventListener
from ridgeline.engine.input_processor import InputProcessor
from ridgeline.engine.machine_profile import stored_profile
from ridgeline.engine.output_processor import OutputProcessor
from ridgeline.engine.request_streams import RequestStreams
from ridgeline.engine.step_forecast import StepForecast
from ridgeline.errors import ConfigError, ModelFileError
from ridgeline.formats.gguf import open_gguf
from ridgeline.hub.catalogue import CATALOGUE
from ridgeline.hub.store import resolve_model
from ridgeline.metrics.drift import DriftWatch
from ridgeline.metrics.event_log import EventLog
from ridgeline.model.forward import Forward
from ridgeline.model.kv_cache import kv_shape
from ridgeline.model.native_forward import NativeForward
from ridgeline.model.reference_forward import ReferenceForward
from ridgeline.model.runner import ModelRunner
from ridgeline.model.sampler import NativeSampler, ReferenceSampler, Sampler
from ridgeline.model.weights import ModelWeights, load_weights
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.kv_memory import KVShape
from ridgeline.perf.kv_sizing import KVCacheSettings, KVCacheSize, size_kv_cache
from ridgeline.perf.model_shape import ModelShape, model_shape_of
from ridgeline.perf.predict import Predictor
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer, build_tokenizer

_logger = logging.getLogger("ridgeline")
_KV_ITEMSIZE = {"native": 2, "reference": 4}


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A running engine and what stands around it; `hardware` is None where the machine is not calibrated."""

    config: EngineConfig
    model_path: Path
    model_name: str
    model: ModelConfig
    model_shape: ModelShape
    weights_bytes: int
    weights_format: str
    kv_shape: KVShape
    num_threads: int
    limits: EngineLimits
    tokenizer: Tokenizer
    input_processor: InputProcessor
    output_processor: OutputProcessor
    request_streams: RequestStreams
    engine: Engine
    event_log: EventLog
    hardware: HardwareProfile | None

    @property
    def kv_block_bytes(self) -> int:
        """K and V of one block, all layers."""
        return self.kv_shape.block_bytes(self.limits.block_size)


def build_engine(
    config: EngineConfig, *, home: Path, clock: Clock, listeners: Sequence[EventListener] = ()
) -> EngineParts:
    """Open the model, size the KV cache, start the executor; `listeners` get every event besides our own.

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
    kv_itemsize = _KV_ITEMSIZE[config.executor]
    shape = kv_shape(weights.config, itemsize=kv_itemsize)
    model_shape = _model_shape(weights, kv_itemsize)
    limits = _limits(config, weights.config, shape)
    num_threads = _num_threads(config)
    forward = _forward(config, weights, limits, num_threads, clock)
    recorder = EventRecorder()
    event_log = EventLog(config.max_num_events)
    drift_watch = DriftWatch(lambda drift: _logger.warning("%s", drift))
    hardware = stored_profile(home, num_threads) if config.executor == "native" else None
    engine = Engine(
        Scheduler(config.scheduler, _kv_cache_manager(config, limits, recorder), recorder),
        ModelRunner(forward, _sampler(config, limits, num_threads, clock), clock.now),
        clock,
        recorder=recorder,
        listeners=[event_log, drift_watch, *listeners],
        forecast=_forecast(model_shape, hardware),
    )
    input_processor, output_processor = InputProcessor(tokenizer, limits), OutputProcessor(tokenizer, engine)
    return EngineParts(
        config=config,
        model_path=path,
        model_name=config.model if config.model in CATALOGUE else path.stem,
        model=weights.config,
        model_shape=model_shape,
        weights_bytes=weights.stored_bytes,
        weights_format=weights.main_format,
        kv_shape=shape,
        num_threads=num_threads,
        limits=limits,
        tokenizer=tokenizer,
        input_processor=input_processor,
        output_processor=output_processor,
        request_streams=RequestStreams(engine, input_processor, output_processor),
        engine=engine,
        event_log=event_log,
        hardware=hardware,
    )


def _kv_cache_manager(config: EngineConfig, limits: EngineLimits, recorder: EventRecorder) -> KVCacheManager:
    return KVCacheManager(
        BlockPool(limits.num_blocks),
        config.block_size,
        recorder,
        prefix_cache=PrefixCache(config.block_size) if config.enable_prefix_caching else None,
        watermark=config.scheduler.watermark,
    )


def _num_threads(config: EngineConfig) -> int:
    """Those asked for, else as many as fit here; a warning where they don't fit."""
    limits = cpu_limits()
    num_threads = config.num_threads or limits.num_threads
    if (excess := limits.excess_note(num_threads)) is not None:
        _logger.warning("%s", excess)
    return num_threads


def _forward(
    config: EngineConfig, weights: ModelWeights, limits: EngineLimits, num_threads: int, clock: Clock
) -> Forward:
    num_blocks, block_size = limits.num_blocks, limits.block_size
    if config.executor == "reference":
        return ReferenceForward(weights, clock.now, num_blocks=num_blocks, block_size=block_size)
    return NativeForward(weights, num_blocks=num_blocks, block_size=block_size, num_threads=num_threads)


def _model_shape(weights: ModelWeights, kv_itemsize: int) -> ModelShape:
    types = {name: tensor.quant_type.name for name, tensor in weights.tensors.items()}
    return model_shape_of(weights.config, types, kv_itemsize=kv_itemsize)


def _forecast(model: ModelShape, hardware: HardwareProfile | None) -> StepForecast | None:
    """Predicts steps where the engine's ops have been timed on this machine."""
    if hardware is None or hardware.prices is None:
        return None
    return StepForecast(Predictor(model, hardware))


def _sampler(config: EngineConfig, limits: EngineLimits, num_threads: int, clock: Clock) -> Sampler:
    if config.executor == "reference":
        return ReferenceSampler(clock.now)
    return NativeSampler(limits.vocab_size, num_threads=num_threads)


def _limits(config: EngineConfig, model: ModelConfig, shape: KVShape) -> EngineLimits:
    """Blocks and context length that agree with each other and with the memory there is."""
    settings = _kv_cache_settings(config, model.name, model.context_len)
    cache = size_kv_cache(shape, settings, available_bytes=available_memory_bytes())
    _warn_if_shorter(settings.max_model_len, cache)
    return EngineLimits(
        vocab_size=model.vocab_size,
        max_model_len=cache.max_model_len,
        block_size=cache.block_size,
        num_blocks=cache.num_blocks,
    )


def _kv_cache_settings(config: EngineConfig, model_name: str, context_len: int) -> KVCacheSettings:
    max_model_len = config.max_model_len or context_len
    if max_model_len > context_len:
        raise ConfigError(
            "max_model_len", max_model_len, f"{model_name} was made for {context_len}; give at most that"
        )
    return KVCacheSettings(
        block_size=config.block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=max_model_len,
        kv_cache_bytes=config.kv_cache_bytes,
    )


def _warn_if_shorter(max_model_len: int, cache: KVCacheSize) -> None:
    if cache.max_model_len < max_model_len:
        _logger.warning(
            "max_model_len is %d instead of %d: the KV cache of %d bytes holds %d blocks of %d tokens",
            *(cache.max_model_len, max_model_len, cache.kv_cache_bytes, cache.num_blocks, cache.block_size),
        )
