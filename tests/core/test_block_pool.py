"""BlockPool: every block is exactly free, idle or used, and idle ones go in order of their last use."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ridgeline.core.block_pool import BlockPool


def take(pool: BlockPool, num_blocks: int) -> list[int]:
    allocation = pool.allocate(num_blocks)
    assert allocation is not None
    return allocation.block_ids


def test_allocation_hands_out_distinct_blocks_until_none_are_left() -> None:
    pool = BlockPool(5)
    assert sorted(take(pool, 3) + take(pool, 2)) == [0, 1, 2, 3, 4]
    assert pool.num_available_blocks == 0
    assert pool.allocate(1) is None
    assert pool.allocate(0) == ([], [])


def test_a_refused_allocation_takes_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(5) is None
    assert pool.num_available_blocks == 4


def test_a_block_freed_last_is_handed_out_first_so_that_untouched_memory_stays_so() -> None:
    pool = BlockPool(10)
    first = take(pool, 2)
    pool.free(first)
    assert take(pool, 2) == first[::-1]


def test_idle_blocks_go_after_free_ones_and_least_recently_used_first() -> None:
    pool = BlockPool(4)
    blocks = take(pool, 3)
    for block_id in blocks:
        pool.mark_cached(block_id)
    pool.free([blocks[1]])
    pool.free([blocks[0], blocks[2]])
    assert pool.num_idle_blocks == 3
    assert pool.allocate(2) == ([3, blocks[1]], [blocks[1]])
    pool.acquire([blocks[0]])
    assert pool.allocate(1) == ([blocks[2]], [blocks[2]])
    assert pool.allocate(1) is None


def test_freeing_a_free_block_is_caught() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free([0])


class BlockPoolMachine(RuleBasedStateMachine):
    """Random allocations, shares and frees against a model that knows each block's owners."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(17)
        self.owned: list[list[int]] = []
        self.idle: list[int] = []

    @rule(count=st.integers(0, 20))
    def allocate(self, count: int) -> None:
        available_before = self.pool.num_available_blocks
        allocation = self.pool.allocate(count)
        if count > available_before:
            assert allocation is None
            return
        assert allocation is not None
        blocks, evicted = allocation
        assert len(blocks) == count
        assert not set(blocks) & {b for owner in self.owned for b in owner}
        assert evicted == self.idle[: len(evicted)]
        self.idle = self.idle[len(evicted) :]
        assert set(blocks) & set(self.idle) == set()
        self.owned.append(blocks)

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(self.owned))
        self.pool.acquire(blocks)
        self.owned.append(list(blocks))

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(self.idle))
        self.pool.acquire([block_id])
        self.idle.remove(block_id)
        self.owned.append([block_id])

    @precondition(lambda self: any(self.owned))
    @rule(data=st.data())
    def cache(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from([b for owner in self.owned for b in owner]))
        self.pool.mark_cached(block_id)

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = self.owned.pop(data.draw(st.integers(0, len(self.owned) - 1)))
        others = [b for owner in self.owned for b in owner]
        freed = self.pool.free(blocks)
        assert freed == [b for b in blocks if b not in others]
        self.idle += [b for b in freed if self.pool.is_cached(b)]

    @rule()
    def forget(self) -> None:
        self.pool.forget_cached()
        self.idle = []

    @invariant()
    def nothing_is_lost(self) -> None:
        self.pool.check_integrity({b for b in range(17) if self.pool.is_cached(b)})
        held = [b for owner in self.owned for b in owner]
        assert self.pool.num_used_blocks == len(set(held))
        assert self.pool.num_idle_blocks == len(self.idle)
        assert self.pool.num_available_blocks + self.pool.num_used_blocks == self.pool.num_blocks
        assert all(self.pool.ref_cnt(b) == held.count(b) for b in held)


TestBlockPoolMachine = BlockPoolMachine.TestCase
