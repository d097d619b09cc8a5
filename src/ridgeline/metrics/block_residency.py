"""BlockResidency: how long cached blocks live, lie idle before they go, and wait to be used again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.core import events as ev
from ridgeline.metrics.buckets import Distribution

BlockEvent = (
    ev.BlocksAllocated | ev.BlocksCopied | ev.BlocksHit | ev.BlocksMerged | ev.BlocksFreed | ev.BlocksEvicted
)


@dataclass(slots=True)
class _Stay:
    """One block since it was given to a request; instants in seconds on the engine's clock."""

    since_s: float
    used_at_s: float
    freed_at_s: float


class BlockResidency:
    """A fold of the events of blocks; every block counts.

    `lifetime`: from allocation to eviction. `idle`: from the moment nobody held it to its eviction.
    `reuse_gap`: between two requests that take the block, the first by computing it, each later one out of
    the prefix cache. Blocks that end without an eviction (freed before they were full, or by a reset of the
    prefix cache) have no lifetime. Source of the quantities: vllm/v1/core/kv_cache_metrics.py, 0.33, which
    samples blocks and counts as idle the time since the last use began.
    """

    def __init__(self, lifetime: Distribution, idle: Distribution, reuse_gap: Distribution) -> None:
        self._lifetime = lifetime
        self._idle = idle
        self._reuse_gap = reuse_gap
        self._stays: dict[int, _Stay] = {}

    def apply(self, event: BlockEvent) -> None:
        """Take one event."""
        now = event.at_s
        if isinstance(event, ev.BlocksAllocated):
            self._begin(event.block_ids, now)
        elif isinstance(event, ev.BlocksCopied):
            self._begin([target for _, target in event.copies], now)
        elif isinstance(event, ev.BlocksHit):
            self._use(event.block_ids, now)
        elif isinstance(event, ev.BlocksMerged):
            self._use([known for _, known in event.merges], now)
        elif isinstance(event, ev.BlocksFreed):
            for stay in self._known(event.block_ids):
                stay.freed_at_s = now
        else:
            for stay in self._known(event.block_ids):
                self._lifetime.observe(now - stay.since_s)
                self._idle.observe(now - stay.freed_at_s)

    def _begin(self, block_ids: Iterable[int], now: float) -> None:
        self._stays |= {block_id: _Stay(now, now, now) for block_id in block_ids}

    def _use(self, block_ids: Iterable[int], now: float) -> None:
        for stay in self._known(block_ids):
            self._reuse_gap.observe(now - stay.used_at_s)
            stay.used_at_s = now

    def _known(self, block_ids: Iterable[int]) -> Iterable[_Stay]:
        """Blocks that were allocated before the first event are not known."""
        return (self._stays[block_id] for block_id in block_ids if block_id in self._stays)
