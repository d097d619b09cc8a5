"""The life of the KV blocks: a fold of events into one map of the blocks per step.

Which blocks a step read follows from its composition: a row at position p reads the tokens 0…p of its
request, and those lie in the first ⌊p / block_size⌋ + 1 blocks of its block table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ridgeline.core import events as ev
from ridgeline.metrics.block_happenings import Happening, happening_of


class BlockState(StrEnum):
    """What a block is at the end of a step."""

    FREE = "free"
    """Nobody holds it and nothing in it can be found."""
    FILLING = "filling"
    """One request holds it and some of its slots are empty."""
    FULL = "full"
    """One request holds it and every slot holds a token."""
    SHARED = "shared"
    """Several requests hold it."""
    IDLE = "idle"
    """Nobody holds it; the prefix cache can find it until it is evicted."""


@dataclass(frozen=True, slots=True)
class BlockView:
    """One block at the end of a step; `owners` are request ids, `num_tokens` the filled slots."""

    block_id: int
    state: BlockState
    owners: tuple[str, ...]
    num_tokens: int
    is_cached: bool


@dataclass(frozen=True, slots=True)
class BlockRead:
    """What one request's rows read of one block in one step.

    `num_rows` rows saw the block; `num_tokens` of its slots were read, `num_token_reads` times in all: once
    a row and slot, which is what attention without any reuse would fetch.
    """

    block_id: int
    request_id: str
    num_rows: int
    num_tokens: int
    num_token_reads: int


@dataclass(frozen=True, slots=True)
class Frame:
    """The blocks after one step; `step_id` None closes a record that ends between steps.

    `blocks` holds every block that was ever touched, by id.
    """

    step_id: int | None
    at_s: float
    blocks: Sequence[BlockView]
    reads: Sequence[BlockRead]
    happenings: Sequence[Happening]
    num_scheduled_tokens: int

    def count(self, *states: BlockState) -> int:
        """Blocks in one of these states, of those touched so far."""
        return sum(block.state in states for block in self.blocks)

    @property
    def num_used_blocks(self) -> int:
        """Blocks that requests hold."""
        return self.count(BlockState.FILLING, BlockState.FULL, BlockState.SHARED)

    @property
    def num_idle_blocks(self) -> int:
        """Blocks that only the prefix cache knows."""
        return self.count(BlockState.IDLE)

    def num_slack_slots(self, block_size: int) -> int:
        """Empty slots of held blocks."""
        return sum(block_size - block.num_tokens for block in self.blocks if block.owners)


@dataclass(slots=True)
class _Fold:
    block_size: int
    tables: dict[str, list[int]] = field(default_factory=dict)
    released: dict[str, list[int]] = field(default_factory=dict)
    merges: list[tuple[str, int, int]] = field(default_factory=list)
    num_computed_tokens: dict[str, int] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    cached: set[int] = field(default_factory=set)
    happenings: list[Happening] = field(default_factory=list)

    def apply(self, event: ev.Event) -> None:
        """Follow one event; `ev` describes how each changes a block table."""
        match event:
            case ev.BlocksHit() | ev.BlocksShared():
                self.tables[event.request_id] = list(event.block_ids)
                self.num_computed_tokens[event.request_id] = event.num_tokens
                self.touched.update(event.block_ids)
            case ev.BlocksAllocated():
                self.tables.setdefault(event.request_id, []).extend(event.block_ids)
                self.touched.update(event.block_ids)
            case ev.BlocksCached():
                self.cached.update(event.block_ids)
            case ev.BlocksCopied():
                for source, target in event.copies:
                    self._replace(event.request_id, source, target)
                    self.touched.add(target)
            case ev.BlocksMerged():
                for source, target in event.merges:
                    self._replace(event.request_id, source, target)
                    self.merges.append((event.request_id, source, target))
            case ev.BlocksEvicted():
                self.cached.difference_update(event.block_ids)
                self.touched.update(event.block_ids)
            case ev.PrefixCacheReset():
                self.cached.clear()
            case ev.RequestPreempted() | ev.RequestFinished():
                self.released[event.request_id] = self.tables.pop(event.request_id, [])
                self.num_computed_tokens.pop(event.request_id, None)

    def finish_step(self, event: ev.StepFinished) -> list[BlockRead]:
        """What the step read; the requests that go on have computed its tokens."""
        reads: list[BlockRead] = []
        for request_id, num_before, num_scheduled_tokens in event.composition:
            table = self._table_in_step(request_id)
            reads += _reads(request_id, table, num_before, num_scheduled_tokens, self.block_size)
            if request_id in self.tables:
                self.num_computed_tokens[request_id] = num_before + num_scheduled_tokens
        self.released.clear()
        self.merges.clear()
        return reads

    def views(self) -> list[BlockView]:
        """Every block that was ever touched."""
        owners: dict[int, list[str]] = {}
        num_tokens = dict.fromkeys(self.cached, self.block_size)
        for request_id, table in self.tables.items():
            num_computed = self.num_computed_tokens.get(request_id, 0)
            for index, block_id in enumerate(table):
                owners.setdefault(block_id, []).append(request_id)
                filled = min(max(num_computed - index * self.block_size, 0), self.block_size)
                num_tokens[block_id] = max(num_tokens.get(block_id, 0), filled)
        return [
            self._view(block_id, owners.get(block_id, ()), num_tokens.get(block_id, 0))
            for block_id in sorted(self.touched)
        ]

    def _view(self, block_id: int, owners: Sequence[str], num_tokens: int) -> BlockView:
        is_cached = block_id in self.cached
        if len(owners) > 1:
            state = BlockState.SHARED
        elif owners:
            state = BlockState.FULL if num_tokens == self.block_size else BlockState.FILLING
        else:
            state = BlockState.IDLE if is_cached else BlockState.FREE
        return BlockView(block_id, state, tuple(owners), num_tokens, is_cached)

    def _table_in_step(self, request_id: str) -> Sequence[int]:
        """The table as the step saw it: a request may have ended, or merged blocks, at the step's end."""
        table = list(self.tables.get(request_id) or self.released.get(request_id) or [])
        for owner, source, target in self.merges:
            if owner == request_id and target in table:
                table[table.index(target)] = source
        return table

    def _replace(self, request_id: str, source: int, target: int) -> None:
        table = self.tables.get(request_id, [])
        if source in table:
            table[table.index(source)] = target


def block_frames(events: Iterable[ev.Event], *, block_size: int) -> Iterator[Frame]:
    """One frame per step, in order, and one more where events follow the last step."""
    fold = _Fold(block_size)
    at_s = 0.0
    for event in events:
        fold.apply(event)
        at_s = event.at_s
        happening = happening_of(event)
        if happening is not None:
            fold.happenings.append(happening)
        if isinstance(event, ev.StepFinished):
            reads = fold.finish_step(event)
            num_tokens = sum(count for _, _, count in event.composition)
            yield Frame(event.step_id, at_s, fold.views(), reads, tuple(fold.happenings), num_tokens)
            fold.happenings.clear()
    if fold.happenings:
        yield Frame(None, at_s, fold.views(), (), tuple(fold.happenings), 0)


def _reads(
    request_id: str, table: Sequence[int], num_computed_tokens: int, num_rows: int, block_size: int
) -> Iterator[BlockRead]:
    end = num_computed_tokens + num_rows
    for index, block_id in enumerate(table[: -(-end // block_size)]):
        start = index * block_size
        first = max(num_computed_tokens, start)  # position of the first row that sees the block
        # Rows first…end−1 see p − start + 1 of its slots, but block_size at most.
        num_partial = max(min(end, start + block_size - 1) - first, 0)
        seen_by_first = first - start + 1
        partial = num_partial * seen_by_first + num_partial * (num_partial - 1) // 2
        whole = (end - first - num_partial) * block_size
        yield BlockRead(block_id, request_id, end - first, min(block_size, end - start), partial + whole)
