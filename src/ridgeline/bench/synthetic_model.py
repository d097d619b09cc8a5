"""A model of chosen shape with made-up weights, run by the real executor on steps of any composition."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.config.model import ModelConfig
from ridgeline.config.scheduler import SchedulerConfig
from ridgeline.core.block_pool import BlockPool
from ridgeline.core.events import EventRecorder
from ridgeline.core.kv_cache_manager import KVCacheManager, num_blocks_for
from ridgeline.core.request import Request
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.step import ScheduledRequest, SchedulerOutput
from ridgeline.engine.clock import MonotonicClock
from ridgeline.engine.engine import Engine
from ridgeline.formats.quants import QUANT_TYPES, QuantType
from ridgeline.kernels.tensor import QuantTensor
from ridgeline.model.native_forward import NativeForward
from ridgeline.model.runner import ModelRunner
from ridgeline.model.sampler import NativeSampler
from ridgeline.model.weights import ModelWeights, expected_shapes
from ridgeline.perf.model_shape import LAYER_MATRICES, ModelShape
from ridgeline.perf.step_shape import StepRow
from ridgeline.sampling_params import SamplingParams

BLOCK_SIZE = 32
_SMALL_SCALE_BYTES = (0x10, 0x2C)
_NOISE_PERIOD = 65_521  # prime, so that rows differ
_EPS = 1e-5
_ROPE_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class EngineStep:
    """One step of a real engine: requests, tokens, seconds in all and of its ops."""

    num_requests: int
    num_tokens: int
    wall_s: float
    ops_s: float


class SyntheticModel:
    """The native executor on made-up weights of `shape`; close it after use.

    `num_blocks` KV blocks hold arbitrary values; a step's requests take them from the first on.
    """

    def __init__(self, shape: ModelShape, *, num_threads: int, num_blocks: int) -> None:
        config = _config_of(shape)
        weights = ModelWeights(config, _tensors(config, shape))
        self._forward = NativeForward(
            weights, num_blocks=num_blocks, block_size=BLOCK_SIZE, num_threads=num_threads
        )
        sampler = NativeSampler(shape.vocab_size, num_threads=num_threads)
        self._clock = MonotonicClock()
        self._runner = ModelRunner(self._forward, sampler, self._clock.now)
        self._num_blocks = num_blocks
        self._vocab_size = shape.vocab_size
        self._step_id = 0

    def __enter__(self) -> SyntheticModel:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def run(self, rows: Sequence[StepRow]) -> dict[str, float]:
        """Seconds by op of one step with these rows (of which those with logits sample greedily)."""
        scheduled, num_blocks = [], 0
        for index, row in enumerate(rows):
            end = row.num_computed_tokens + row.num_scheduled_tokens
            blocks = range(num_blocks, num_blocks + num_blocks_for(end, BLOCK_SIZE))
            num_blocks = blocks.stop
            assert num_blocks <= self._num_blocks
            request = self._request(str(index), end + (row.num_logits_rows == 0), max_tokens=2)
            scheduled.append(
                ScheduledRequest(request, row.num_computed_tokens, row.num_scheduled_tokens, list(blocks))
            )
        self._step_id += 1
        return self._runner.execute(SchedulerOutput(self._step_id, scheduled)).op_seconds

    def engine_steps(self, num_requests: int, *, num_prompt_tokens: int, num_steps: int) -> list[EngineStep]:
        """Let a real engine serve equal requests for `num_steps` steps; the first one is the prompts'."""
        recorder = EventRecorder()
        config = SchedulerConfig(
            max_num_seqs=num_requests, max_num_batched_tokens=num_requests * num_prompt_tokens
        )
        manager = KVCacheManager(BlockPool(self._num_blocks), BLOCK_SIZE, recorder, prefix_cache=None)
        engine = Engine(Scheduler(config, manager, recorder), self._runner, self._clock, recorder=recorder)
        for index in range(num_requests):
            engine.add_request(self._request(str(index), num_prompt_tokens, max_tokens=num_steps))
        steps = []
        for number in range(num_steps):
            started_at_s = time.perf_counter()
            executed = engine.execute(engine.schedule())
            engine.commit(executed)
            wall_s = time.perf_counter() - started_at_s
            num_tokens = num_requests * (1 if number else num_prompt_tokens)
            ops_s = sum(executed.runner_output.op_seconds.values())
            steps.append(EngineStep(num_requests, num_tokens, wall_s, ops_s))
        return steps

    def _request(self, request_id: str, num_prompt_tokens: int, *, max_tokens: int) -> Request:
        token_ids = [(7919 * i) % self._vocab_size for i in range(num_prompt_tokens)]
        return Request(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling_params=SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True),
            arrived_at_s=0.0,
            seed=0,
            max_num_tokens=num_prompt_tokens + max_tokens,
        )


def synthetic_bytes(quant_type: QuantType, num_elements: int) -> NDArray[np.uint8]:
    """Stored bytes of a made-up tensor: varied quants, small positive scales, no NaN and no denormals."""
    noise = (np.arange(_NOISE_PERIOD, dtype=np.int64) * 2654435761 >> 7).astype(np.uint8)
    if quant_type.quant_block_size > 1:
        low, high = _SMALL_SCALE_BYTES
        # Two of them as fp16 are a scale of 0.0005 … 0.07.
        pattern = (low + noise % (high - low)).astype(np.uint8)
        return np.resize(pattern, quant_type.size_bytes(num_elements))
    pattern_values = (noise.astype(np.float32) - np.float32(127.5)) / np.float32(4096)
    values = np.resize(pattern_values, num_elements)
    if quant_type.name == "F32":
        return values.view(np.uint8)
    if quant_type.name == "F16":
        return values.astype(np.float16).view(np.uint8)
    assert quant_type.name == "BF16"
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint8)


def _tensors(config: ModelConfig, shape: ModelShape) -> Mapping[str, QuantTensor]:
    """All tensors by GGUF name; those of one type and size share their bytes until they are packed."""
    known: dict[tuple[str, int], NDArray[np.uint8]] = {}
    tensors = {}
    gguf_to_own = {gguf: name for name, gguf in LAYER_MATRICES.items()}
    for name, tensor_shape in expected_shapes(config):
        quant_type = QUANT_TYPES[_type_name(name, tensor_shape, shape, gguf_to_own)]
        key = (quant_type.name, int(np.prod(tensor_shape)))
        if key not in known:
            known[key] = synthetic_bytes(quant_type, key[1])
        tensors[name] = QuantTensor(name, quant_type, tensor_shape, known[key])
    return tensors


def _type_name(
    name: str, tensor_shape: tuple[int, ...], shape: ModelShape, gguf_to_own: Mapping[str, str]
) -> str:
    if len(tensor_shape) == 1:
        return "F32"
    if name.startswith("blk."):
        _, layer, part, _ = name.split(".")
        return shape.matrix_types[gguf_to_own[part]][int(layer)]
    return shape.matrix_types["token_embd" if name == "token_embd.weight" else "lm_head"][0]


def _config_of(shape: ModelShape) -> ModelConfig:
    pairs = shape.rope_dim // 2
    return ModelConfig(
        name=shape.name,
        arch="llama",
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        ffn_size=shape.ffn_size,
        vocab_size=shape.vocab_size,
        context_len=1 << 20,
        rms_norm_eps=_EPS,
        rope_dim=shape.rope_dim,
        rope_is_neox=False,
        rope_inv_freq=tuple(float(np.float32(_ROPE_BASE ** (-i / pairs))) for i in range(pairs)),
        has_qkv_bias=shape.has_qkv_bias,
        has_qk_norm=shape.has_qk_norm,
        is_tied=shape.is_tied,
    )
