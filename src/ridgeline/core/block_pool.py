"""BlockPool: who owns which block of KV memory, by id; the memory itself lives elsewhere."""

from __future__ import annotations

from collections import deque


class BlockPool:
    """A fixed number of blocks, each free or referenced.

    The only writer of reference counts and of the free queue. Blocks freed last are handed out
    last, so that a block's contents stay in place for as long as possible.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self._ref_cnt = [0] * num_blocks
        self._free_block_queue = deque(range(num_blocks))

    @property
    def num_blocks(self) -> int:
        """All blocks, free and used."""
        return len(self._ref_cnt)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody references."""
        return len(self._free_block_queue)

    @property
    def num_used_blocks(self) -> int:
        """Blocks that at least one request references."""
        return self.num_blocks - self.num_free_blocks

    def ref_cnt(self, block_id: int) -> int:
        """How many owners a block has."""
        return self._ref_cnt[block_id]

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Ids of `num_blocks` blocks, now owned once each; None when fewer are free."""
        if num_blocks > self.num_free_blocks:
            return None
        block_ids = [self._free_block_queue.popleft() for _ in range(num_blocks)]
        for block_id in block_ids:
            assert self._ref_cnt[block_id] == 0, f"free block {block_id} has an owner"
            self._ref_cnt[block_id] = 1
        return block_ids

    def free(self, block_ids: list[int]) -> list[int]:
        """Give up one reference to each block; returns the ids that became free."""
        freed = []
        for block_id in block_ids:
            assert self._ref_cnt[block_id] > 0, f"block {block_id} freed twice"
            self._ref_cnt[block_id] -= 1
            if self._ref_cnt[block_id] == 0:
                self._free_block_queue.append(block_id)
                freed.append(block_id)
        return freed

    def check_integrity(self) -> None:
        """Assert that every block is exactly free or exactly owned."""
        free = set(self._free_block_queue)
        assert len(free) == len(self._free_block_queue), "a block is twice in the free queue"
        for block_id, ref_cnt in enumerate(self._ref_cnt):
            assert ref_cnt >= 0
            assert (ref_cnt == 0) == (block_id in free), f"block {block_id}: {ref_cnt} owners"
