"""The arrays behind the blocks. Core owns block ids, these are the bytes."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.config.model import ModelConfig
from ridgeline.errors import ConfigError

DType = TypeVar("DType", bound=np.generic)


def kv_block_bytes(config: ModelConfig, *, block_size: int, itemsize: int) -> int:
    """Bytes of one block: 2 (K, V) · layers · KV heads · head_dim · block_size · itemsize."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * block_size * itemsize


def new_native_kv_cache(config: ModelConfig, *, num_blocks: int, block_size: int) -> NDArray[np.float16]:
    """Zeroed K and V, float16 [num_blocks, num_layers, num_kv_heads, 2, head_dim · block_size].

    In each pair K is stored [head_dim][block_size] and V [block_size][head_dim]. A block's pages cost
    memory when they are first written: the system hands out zero pages lazily.
    """
    shape = (num_blocks, config.num_layers, config.num_kv_heads, 2, config.head_dim * block_size)
    return _reserved(shape, np.float16)


def new_reference_kv_cache(config: ModelConfig, *, num_blocks: int, block_size: int) -> NDArray[np.float32]:
    """Zeroed K and V, float32 [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]."""
    shape = (num_blocks, config.num_layers, 2, config.num_kv_heads, block_size, config.head_dim)
    return _reserved(shape, np.float32)


def _reserved(shape: tuple[int, ...], dtype: type[DType]) -> NDArray[DType]:
    try:
        return np.zeros(shape, dtype)
    except MemoryError:
        size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        raise ConfigError(
            "kv_cache_bytes", size_bytes, "the system refuses to reserve it; give less"
        ) from None
