"""BlockPool: every block is exactly free or exactly owned."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ridgeline.core.block_pool import BlockPool


def test_allocation_hands_out_distinct_blocks_until_none_are_left() -> None:
    pool = BlockPool(5)
    first, second = pool.allocate(3), pool.allocate(2)
    assert first is not None
    assert second is not None
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert pool.num_free_blocks == 0
    assert pool.allocate(1) is None
    assert pool.allocate(0) == []


def test_a_refused_allocation_takes_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(5) is None
    assert pool.num_free_blocks == 4


def test_blocks_freed_first_are_handed_out_first() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    assert blocks is not None
    pool.free([blocks[1]])
    pool.free([blocks[0]])
    assert pool.allocate(2) == [blocks[1], blocks[0]]


def test_freeing_a_free_block_is_caught() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free([0])


class BlockPoolMachine(RuleBasedStateMachine):
    """Random allocations and frees against a model that knows each block's owner."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(17)
        self.owned: list[list[int]] = []

    @rule(count=st.integers(0, 20))
    def allocate(self, count: int) -> None:
        free_before = self.pool.num_free_blocks
        blocks = self.pool.allocate(count)
        if count > free_before:
            assert blocks is None
        else:
            assert blocks is not None
            assert len(blocks) == count
            assert not set(blocks) & {b for owner in self.owned for b in owner}
            self.owned.append(blocks)

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        owner = data.draw(st.integers(0, len(self.owned) - 1))
        blocks = self.owned.pop(owner)
        assert self.pool.free(blocks) == blocks

    @invariant()
    def nothing_is_lost(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_used_blocks == sum(map(len, self.owned))
        assert self.pool.num_free_blocks + self.pool.num_used_blocks == self.pool.num_blocks
        assert all(self.pool.ref_cnt(b) == 1 for owner in self.owned for b in owner)


TestBlockPoolMachine = BlockPoolMachine.TestCase
