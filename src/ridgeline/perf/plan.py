"""A plan: what a model takes and how much a machine serves with it, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ridgeline.perf.kv_memory import KVShape, RequestMemory
from ridgeline.perf.kv_sizing import KVCacheSettings, KVCacheSize, size_kv_cache


class Limit(StrEnum):
    """What runs out first."""

    WEIGHTS = "weights"
    """The weights alone exceed the memory."""
    MEMORY = "memory"
    """Weights and KV cache each fit, both together do not."""
    KV_CACHE = "kv_cache"
    """The KV cache is full before `max_num_seqs` requests run."""
    MAX_NUM_SEQS = "max_num_seqs"
    """`max_num_seqs` requests run before the KV cache is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes in bytes; `weights_bytes` is None where the model's dimensions don't tell."""

    weights_bytes: int | None
    shape: KVShape
    settings: KVCacheSettings
    cache: KVCacheSize
    memory_bytes: int
    requests: Sequence[RequestMemory]

    def max_concurrency(self, request: RequestMemory) -> int:
        """Requests of this context that the KV cache holds at once, whatever `max_num_seqs` is."""
        if not self.shape.num_window_layers:
            return self.cache.num_blocks // request.num_blocks
        return self.cache.kv_cache_bytes // request.allocated_bytes

    def first_limit(self, request: RequestMemory) -> Limit:
        """What stops one more request of this context."""
        weights_bytes = self.weights_bytes or 0
        if weights_bytes > self.memory_bytes:
            return Limit.WEIGHTS
        if weights_bytes + self.cache.kv_cache_bytes > self.memory_bytes:
            return Limit.MEMORY
        enough = self.max_concurrency(request) >= self.settings.max_num_seqs
        return Limit.MAX_NUM_SEQS if enough else Limit.KV_CACHE

    @property
    def memory_left_bytes(self) -> int:
        """Memory beside weights and KV cache; negative where they don't fit."""
        return self.memory_bytes - (self.weights_bytes or 0) - self.cache.kv_cache_bytes

    def document(self) -> Mapping[str, object]:
        """The plan as JSON has it.

        The last three keys need measured ceilings of the machine and are null without them.
        """
        cache = self.cache
        return {
            "weights_bytes": self.weights_bytes,
            "kv_bytes_per_token": self.shape.bytes_per_token,
            "kv_formula": self.shape.formula,
            "block_bytes": cache.block_bytes,
            "num_blocks": cache.num_blocks,
            "kv_cache_bytes": cache.kv_cache_bytes,
            "max_cached_tokens": cache.max_cached_tokens,
            "max_concurrency": {str(r.num_tokens): self.max_concurrency(r) for r in self.requests},
            "decode_tok_s_limit": None,
            "prefill_tok_s_limit": None,
            "ridge_batch": None,
            "details": {
                "block_size": cache.block_size,
                "max_model_len": cache.max_model_len,
                "max_num_seqs": self.settings.max_num_seqs,
                "memory_bytes": self.memory_bytes,
                "memory_left_bytes": self.memory_left_bytes,
                "requests": [
                    {
                        "context": request.num_tokens,
                        "token_bytes": request.token_bytes,
                        "blocks": request.num_blocks,
                        "allocated_bytes": request.allocated_bytes,
                        "slack_tokens": request.slack_tokens,
                        "formula": request.formula,
                        "runs_out_first": self.first_limit(request),
                    }
                    for request in self.requests
                ],
            },
        }


def make_plan(
    shape: KVShape,
    settings: KVCacheSettings,
    *,
    weights_bytes: int | None,
    memory_bytes: int,
    contexts: Sequence[int] = (),
) -> Plan:
    """Size the cache as the engine does, and each context's request (by default a few up to the longest).

    Raises:
        ConfigError: a context below 1 token, or a KV cache that the memory can't hold.
    """
    cache = size_kv_cache(shape, settings, available_bytes=memory_bytes)
    contexts = list(dict.fromkeys(contexts)) or default_contexts(settings.max_model_len)
    return Plan(
        weights_bytes=weights_bytes,
        shape=shape,
        settings=settings,
        cache=cache,
        memory_bytes=memory_bytes,
        requests=[shape.request(context, settings.block_size) for context in contexts],
    )


def default_contexts(max_model_len: int) -> list[int]:
    """128, 512, 2,048, … below `max_model_len`, and that itself."""
    contexts = []
    context = 128
    while context < max_model_len:
        contexts.append(context)
        context *= 4
    return [*contexts, max_model_len]
