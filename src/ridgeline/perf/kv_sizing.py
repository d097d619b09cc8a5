"""How large the KV cache becomes: from what was asked, what can be used, and what the memory holds."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import ConfigError
from ridgeline.perf.kv_memory import KVShape

KV_SHARE_OF_MEMORY = 0.25
"""The default cache takes at most this share of the available memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSettings:
    """What a user may set of the cache; `kv_cache_bytes` None leaves it to the machine."""

    block_size: int
    max_num_seqs: int
    max_model_len: int
    kv_cache_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSize:
    """What it came to. `max_model_len` is less than asked where the cache can't hold one such request."""

    block_size: int
    block_bytes: int
    num_blocks: int
    max_model_len: int

    @property
    def kv_cache_bytes(self) -> int:
        """Bytes of all blocks: what is allocated, to the byte."""
        return self.num_blocks * self.block_bytes

    @property
    def max_cached_tokens(self) -> int:
        """Tokens that all blocks together hold."""
        return self.num_blocks * self.block_size


def size_kv_cache(shape: KVShape, settings: KVCacheSettings, *, available_bytes: int) -> KVCacheSize:
    """min(25 % of the available memory, max_num_seqs × a request of max_model_len), in whole blocks.

    Raises:
        ConfigError: more was asked than is available, or less than one block came of it.
    """
    block_size, kv_cache_bytes = settings.block_size, settings.kv_cache_bytes
    block_bytes = shape.block_bytes(block_size)
    if kv_cache_bytes is None:
        wanted = settings.max_num_seqs * shape.request(settings.max_model_len, block_size).allocated_bytes
        kv_cache_bytes = min(int(available_bytes * KV_SHARE_OF_MEMORY), wanted)
    elif kv_cache_bytes > available_bytes:
        raise ConfigError("kv_cache_bytes", kv_cache_bytes, f"only {available_bytes} bytes are available")
    num_blocks = kv_cache_bytes // block_bytes
    if num_blocks < 1:
        remedy = f"a block of {block_size} tokens takes {block_bytes} bytes; give at least that"
        raise ConfigError("kv_cache_bytes", kv_cache_bytes, remedy)
    max_model_len = min(settings.max_model_len, num_blocks * block_size)
    return KVCacheSize(
        block_size=block_size, block_bytes=block_bytes, num_blocks=num_blocks, max_model_len=max_model_len
    )
