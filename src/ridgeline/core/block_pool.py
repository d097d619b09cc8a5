"""BlockPool: who owns which block of KV memory, by id; the memory itself lives elsewhere."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple


class Allocation(NamedTuple):
    """New blocks of one owner, and those of them whose cached content had to go for it."""

    block_ids: list[int]
    evicted_block_ids: list[int]


class BlockPool:
    """A fixed number of blocks. The only writer of reference counts and of the free queues.

    A block is used (somebody references it), idle (nobody does, but its content is findable) or free.
    Free blocks are handed out first, the one freed last before all others, so that memory never touched
    stays untouched; then idle ones, least recently used first. All in O(1) a block.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self._ref_cnt = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._cached: set[int] = set()

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return len(self._ref_cnt)

    @property
    def num_available_blocks(self) -> int:
        """Blocks that nobody references, idle ones included."""
        return len(self._free) + len(self._idle)

    @property
    def num_idle_blocks(self) -> int:
        """Blocks that nobody references and whose content is findable."""
        return len(self._idle)

    @property
    def num_used_blocks(self) -> int:
        """Blocks that somebody references."""
        return self.num_blocks - self.num_available_blocks

    def ref_cnt(self, block_id: int) -> int:
        """How many owners a block has."""
        return self._ref_cnt[block_id]

    def is_cached(self, block_id: int) -> bool:
        """Whether the block's content is findable, so that nobody may write to it."""
        return block_id in self._cached

    def allocate(self, num_blocks: int) -> Allocation | None:
        """`num_blocks` blocks, now owned once each; None when fewer are available."""
        if num_blocks > self.num_available_blocks:
            return None
        num_free = min(num_blocks, len(self._free))
        block_ids = [self._free.pop() for _ in range(num_free)]
        evicted = [self._idle.popitem(last=False)[0] for _ in range(num_blocks - num_free)]
        self._cached.difference_update(evicted)
        block_ids += evicted
        for block_id in block_ids:
            assert self._ref_cnt[block_id] == 0, f"available block {block_id} has an owner"
            self._ref_cnt[block_id] = 1
        return Allocation(block_ids, evicted)

    def acquire(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block; idle ones are used again."""
        for block_id in block_ids:
            if self._ref_cnt[block_id] == 0:
                del self._idle[block_id]
            self._ref_cnt[block_id] += 1

    def free(self, block_ids: Sequence[int]) -> list[int]:
        """Give up one reference to each block; returns the ids that nobody owns any more, in order.

        Those that are cached become idle; the first given is the first to be evicted.
        """
        freed = []
        for block_id in block_ids:
            assert self._ref_cnt[block_id] > 0, f"block {block_id} freed twice"
            self._ref_cnt[block_id] -= 1
            if self._ref_cnt[block_id] == 0:
                freed.append(block_id)
                if block_id in self._cached:
                    self._idle[block_id] = None
                else:
                    self._free.append(block_id)
        return freed

    def mark_cached(self, block_id: int) -> None:
        """The used block's content is findable from now on."""
        assert self._ref_cnt[block_id] > 0
        self._cached.add(block_id)

    def forget_cached(self) -> None:
        """No block's content is findable any more; idle blocks are free."""
        self._free += self._idle
        self._idle.clear()
        self._cached.clear()

    def check_integrity(self, cached: Collection[int]) -> None:
        """Assert that every block is exactly one of free, idle or used, and that `cached` are findable."""
        assert self._cached == set(cached)
        free = set(self._free)
        assert len(free) == len(self._free), "a block is twice in the free list"
        assert not free & self._idle.keys()
        assert not free & self._cached
        assert self._idle.keys() <= self._cached
        for block_id, ref_cnt in enumerate(self._ref_cnt):
            assert ref_cnt >= 0
            is_available = block_id in free or block_id in self._idle
            assert (ref_cnt == 0) == is_available, f"block {block_id}: {ref_cnt} owners"
