"""KVCacheManager: the block table of every request."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.core.block_pool import BlockPool
from ridgeline.core.events import BlocksAllocated, BlocksFilled, BlocksFreed, EventRecorder
from ridgeline.core.request import Request


def num_blocks_for(num_slots: int, block_size: int) -> int:
    """Blocks that hold `num_slots` tokens: ⌈num_slots / block_size⌉."""
    return -(-num_slots // block_size)


class KVCacheManager:
    """Gives blocks to requests as their tokens are computed. The only writer of block tables.

    Blocks are taken when their first token is scheduled. Admission reserves a request's worst case
    (`max_num_tokens` less the last token, whose K and V are never needed), so that every admitted
    request can run to its end without taking blocks from another.
    """

    def __init__(self, block_pool: BlockPool, block_size: int, recorder: EventRecorder) -> None:
        self.block_size = block_size
        self._block_pool = block_pool
        self._block_tables: dict[str, list[int]] = {}
        self._reserved_blocks: dict[str, int] = {}
        self._num_reserved_blocks = 0
        self._recorder = recorder

    @property
    def num_blocks(self) -> int:
        """All blocks of the cache."""
        return self._block_pool.num_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks that requests hold now."""
        return self._block_pool.num_used_blocks

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0…1."""
        return self._block_pool.num_used_blocks / self._block_pool.num_blocks

    def block_ids(self, request_id: str) -> Sequence[int]:
        """The request's block table, for reading only."""
        return self._block_tables[request_id]

    def max_blocks_of(self, request: Request) -> int:
        """Blocks the request holds if it runs to `max_num_tokens`."""
        return num_blocks_for(max(request.max_num_tokens - 1, request.num_prompt_tokens), self.block_size)

    def fits_at_all(self, request: Request) -> bool:
        """Whether an empty cache could hold the request."""
        return self.max_blocks_of(request) <= self.num_blocks

    def try_admit(self, request: Request) -> bool:
        """Reserve the request's worst case; False when the others' reservations leave too little."""
        num_blocks = self.max_blocks_of(request)
        if self._num_reserved_blocks + num_blocks > self.num_blocks:
            return False
        assert request.request_id not in self._block_tables
        self._block_tables[request.request_id] = []
        self._reserved_blocks[request.request_id] = num_blocks
        self._num_reserved_blocks += num_blocks
        return True

    def allocate_slots(self, request: Request, num_new_tokens: int, now: float) -> None:
        """Make the block table long enough for `num_new_tokens` more computed tokens."""
        block_table = self._block_tables[request.request_id]
        num_needed = num_blocks_for(request.num_computed_tokens + num_new_tokens, self.block_size)
        num_missing = num_needed - len(block_table)
        if num_missing <= 0:
            return
        assert num_needed <= self._reserved_blocks[request.request_id], "beyond the reservation"
        new_block_ids = self._block_pool.allocate(num_missing)
        assert new_block_ids is not None, "reservations exceed the cache"
        block_table += new_block_ids
        self._recorder.record(BlocksAllocated(now, request.request_id, tuple(new_block_ids)))

    def note_computed(self, request: Request, num_new_tokens: int, now: float) -> None:
        """Record which blocks became full with these tokens (before the request is advanced)."""
        first = request.num_computed_tokens // self.block_size
        last = (request.num_computed_tokens + num_new_tokens) // self.block_size
        if last > first:
            filled = self._block_tables[request.request_id][first:last]
            self._recorder.record(BlocksFilled(now, request.request_id, tuple(filled)))

    def free(self, request: Request, now: float) -> None:
        """Give back the request's blocks, tail first, and its reservation; no-op if never admitted."""
        block_table = self._block_tables.pop(request.request_id, None)
        if block_table is None:
            return
        self._num_reserved_blocks -= self._reserved_blocks.pop(request.request_id)
        freed = self._block_pool.free(block_table[::-1])
        if freed:
            self._recorder.record(BlocksFreed(now, request.request_id, tuple(freed)))

    def check_integrity(self) -> None:
        """Assert that tables and pool agree: no block owned twice, none lost."""
        self._block_pool.check_integrity()
        owned = [block_id for table in self._block_tables.values() for block_id in table]
        assert len(owned) == len(set(owned)) == self._block_pool.num_used_blocks
        assert self._num_reserved_blocks == sum(self._reserved_blocks.values()) <= self.num_blocks
        for request_id, block_table in self._block_tables.items():
            assert len(block_table) <= self._reserved_blocks[request_id]
