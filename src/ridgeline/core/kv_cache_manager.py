"""KVCacheManager: the block table of every request, shared where the tokens are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.core import events
from ridgeline.core.block_pool import BlockPool
from ridgeline.core.prefix_cache import CachedBlock, Parent, PrefixCache
from ridgeline.core.request import Request
from ridgeline.errors import ContextLengthError


def num_blocks_for(num_slots: int, block_size: int) -> int:
    """Blocks that hold `num_slots` tokens: ⌈num_slots / block_size⌉."""
    return -(-num_slots // block_size)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks by state, and what the prefix cache did.

    `num_used_blocks + num_idle_blocks + num_free_blocks = num_blocks`: used are held by a request, idle
    by nobody but findable, free hold nothing. `num_slack_slots` counts the slots of used blocks that hold
    no computed token. `num_queried_tokens`, `num_hit_tokens`: tokens of admitted requests and those of
    them that were found; second look-ups after a preemption are left out.
    """

    num_blocks: int
    num_used_blocks: int
    num_idle_blocks: int
    num_free_blocks: int
    num_slack_slots: int
    num_queried_tokens: int
    num_hit_tokens: int
    num_evicted_blocks: int

    @property
    def hit_rate(self) -> float | None:
        """Found tokens of those asked for, 0…1; None before the first request."""
        return self.num_hit_tokens / self.num_queried_tokens if self.num_queried_tokens else None


@dataclass(slots=True)
class _BlockTable:
    """One request's blocks.

    `num_owed` more were promised at admission, `max_blocks` bounds them all. The first `num_cached` are in
    the hash index, the next full one follows while `may_cache`. `num_forked_slots` of the last are borrowed.
    """

    request: Request
    block_ids: list[int]
    max_blocks: int
    num_owed: int = 0
    num_cached: int = 0
    may_cache: bool = True
    num_forked_slots: int = 0
    grows: bool = False


class KVCacheManager:
    """Gives blocks to requests as their tokens are computed. The only writer of block tables.

    Admission promises the blocks of a request's known tokens; the promise is kept whatever the others do.
    Blocks beyond it (for tokens yet to be generated) are given while there are any. Full blocks enter the
    prefix cache as they are computed; with `prefix_cache` None nothing is ever found.
    """

    def __init__(
        self,
        block_pool: BlockPool,
        block_size: int,
        recorder: events.EventRecorder,
        *,
        prefix_cache: PrefixCache | None = None,
        watermark: float = 0.0,
    ) -> None:
        self.block_size = block_size
        self._block_pool = block_pool
        self._prefix_cache = prefix_cache
        self._num_watermark_blocks = -int(-watermark * block_pool.num_blocks // 1)
        self._recorder = recorder
        self._tables: dict[str, _BlockTable] = {}
        self._copies: dict[str, tuple[int, int]] = {}
        self._num_owed = self._num_growing = 0
        self._num_queried_tokens = self._num_hit_tokens = self._num_evicted_blocks = 0

    @property
    def occupancy(self) -> Occupancy:
        """Blocks by state and slack slots right now, counts of the prefix cache since the start."""
        size, pool = self.block_size, self._block_pool
        filled: dict[int, int] = {}
        has_forks = any(table.num_forked_slots for table in self._tables.values())
        for table in self._tables.values():
            num_computed_tokens = table.request.num_computed_tokens
            # The source of a fork may have filled the block that the fork reads a part of.
            for index in range(0 if has_forks else num_computed_tokens // size, len(table.block_ids)):
                block_id, num_slots = table.block_ids[index], num_computed_tokens - index * size
                filled[block_id] = max(filled.get(block_id, 0), min(num_slots, size))
        return Occupancy(
            num_blocks=pool.num_blocks,
            num_used_blocks=pool.num_used_blocks,
            num_idle_blocks=pool.num_idle_blocks,
            num_free_blocks=pool.num_available_blocks - pool.num_idle_blocks,
            num_slack_slots=sum(size - n for block_id, n in filled.items() if not pool.is_cached(block_id)),
            num_queried_tokens=self._num_queried_tokens,
            num_hit_tokens=self._num_hit_tokens,
            num_evicted_blocks=self._num_evicted_blocks,
        )

    @property
    def block_copies(self) -> list[tuple[int, int]]:
        """(from, to) blocks to be copied before the next step computes anything."""
        return list(self._copies.values())

    def block_ids(self, request_id: str) -> Sequence[int]:
        """The request's block table, for reading only."""
        return self._tables[request_id].block_ids

    def max_blocks_of(self, request: Request) -> int:
        """Blocks the request holds if it runs to `max_num_tokens`; its last token needs no slot."""
        return num_blocks_for(max(request.max_num_tokens - 1, request.num_prompt_tokens), self.block_size)

    def check_fits(self, request: Request) -> None:
        """Raise `ContextLengthError`, with the arithmetic, if an empty cache could not hold the request."""
        num_needed, num_blocks = self.max_blocks_of(request), self._block_pool.num_blocks
        if num_needed > num_blocks:
            remedy = (
                f"needs {num_needed} blocks of {self.block_size} tokens with its output, the KV cache has "
                f"{num_blocks}; shorten it or raise kv_cache_bytes"
            )
            raise ContextLengthError("prompt", f"{request.num_prompt_tokens} tokens", remedy)

    def find_prefix(self, request: Request) -> list[int]:
        """Cached blocks with the request's first tokens; at least one token is left to compute."""
        if self._prefix_cache is None or request.request_id in self._tables or request.needs_all_logits:
            return []
        return self._prefix_cache.find_prefix(request)

    def shares_next_block(self, request: Request, other: Request) -> bool:
        """Whether `other` is about to compute a block that `request` needs too and would find."""
        cache = self._prefix_cache
        return cache is not None and not request.needs_all_logits and cache.shares_next_block(request, other)

    def try_admit(self, request: Request, prefix: Sequence[int], now: float) -> bool:
        """Promise the blocks of all known tokens, the first of which are `prefix`.

        False while too few are available: every request that may grow must be able to by one block, and
        the watermark stays free, unless no request holds anything.
        """
        table = self._tables.get(request.request_id)
        num_held = len(prefix) if table is None else len(table.block_ids) - (table.num_forked_slots > 0)
        num_owed = num_blocks_for(request.num_tokens, self.block_size) - num_held
        max_blocks = self.max_blocks_of(request)
        grows = num_held + num_owed < max_blocks
        num_revived = sum(self._block_pool.ref_cnt(block_id) == 0 for block_id in prefix)
        num_spare = self._block_pool.num_available_blocks - self._num_owed - num_revived - num_owed
        is_alone = not self._tables or (table is not None and len(self._tables) == 1)
        if num_spare < (0 if is_alone else max(self._num_watermark_blocks, self._num_growing + grows)):
            return False
        if table is None:
            table = self._tables[request.request_id] = _BlockTable(request, [], max_blocks)
            self._take_prefix(table, prefix, now)
        table.num_owed, table.grows = num_owed, grows
        self._num_owed += num_owed
        self._num_growing += grows
        return True

    def has_promised(self, request: Request) -> bool:
        """Whether the blocks of all its known tokens are held or promised; forced tokens may go beyond."""
        table = self._tables[request.request_id]
        num_held = len(table.block_ids) - (table.num_forked_slots > 0)
        return num_held + table.num_owed >= num_blocks_for(request.num_tokens, self.block_size)

    def allocate_slots(self, request: Request, num_new_tokens: int, now: float) -> bool:
        """Make the block table long enough for `num_new_tokens` more computed tokens.

        False, and nothing changed, when that takes more blocks than were promised and none is left.
        """
        table = self._tables[request.request_id]
        if table.num_forked_slots:
            self._own_last_block(table, now)
        num_needed = num_blocks_for(request.num_computed_tokens + num_new_tokens, self.block_size)
        num_missing = num_needed - len(table.block_ids)
        if num_missing <= 0:
            return True
        num_unpromised = max(num_missing - table.num_owed, 0)
        if num_unpromised > self._block_pool.num_available_blocks - self._num_owed:
            return False
        new_block_ids = self._take_blocks(table, num_missing, now)
        table.block_ids += new_block_ids
        self._recorder.record(events.BlocksAllocated(now, request.request_id, tuple(new_block_ids)))
        if table.grows and len(table.block_ids) + table.num_owed >= table.max_blocks:
            table.grows = False
            self._num_growing -= 1
        return True

    def note_filled(self, request: Request, num_new_tokens: int, now: float) -> None:
        """Record which blocks these tokens filled, and cache them (before the request is advanced)."""
        first = request.num_computed_tokens // self.block_size
        last = (request.num_computed_tokens + num_new_tokens) // self.block_size
        table = self._tables[request.request_id]
        filled = tuple(table.block_ids[first:last])
        self._recorder.record(events.BlocksFilled(now, request.request_id, filled))
        if self._prefix_cache is not None and table.may_cache:
            self._cache_blocks(self._prefix_cache, table, last, now)

    def fork(self, source: Request, request: Request, now: float) -> int:
        """Let a waiting request hold the source's blocks of all prompt tokens but the last.

        Returns how many tokens these are. The last block, if partly filled, is copied when the request
        first writes to it; until then the source goes on writing behind these tokens.
        """
        num_tokens = request.num_prompt_tokens - 1
        source_table = self._tables[source.request_id]
        block_ids = source_table.block_ids[: num_blocks_for(num_tokens, self.block_size)]
        self._block_pool.acquire(block_ids)
        self._tables[request.request_id] = _BlockTable(
            request,
            block_ids,
            self.max_blocks_of(request),
            num_cached=min(source_table.num_cached, num_tokens // self.block_size),
            may_cache=source_table.may_cache,
            num_forked_slots=num_tokens % self.block_size,
        )
        self._recorder.record(
            events.BlocksShared(now, request.request_id, tuple(block_ids), source.request_id, num_tokens)
        )
        return num_tokens

    def confirm_copies(self, now: float) -> None:
        """The step with the pending copies is over: let go of the blocks copied from."""
        for request_id, (source, _) in self._copies.items():
            self._free_blocks(request_id, [source], now)
        self._copies.clear()

    def free(self, request: Request, now: float) -> None:
        """Give back the request's blocks, tail first, and its promise; no-op if it holds none."""
        if self._prefix_cache is not None and request.is_finished:
            self._prefix_cache.forget(request)
        table = self._tables.pop(request.request_id, None)
        if table is None:
            return
        self._num_owed -= table.num_owed
        self._num_growing -= table.grows
        copy = self._copies.pop(request.request_id, None)
        pinned = [copy[0]] if copy is not None else []
        self._free_blocks(request.request_id, table.block_ids[::-1] + pinned, now)

    def reset_prefix_cache(self, now: float) -> None:
        """Nothing computed so far is found from now on; blocks in use stay with their owners."""
        if self._prefix_cache is None:
            return
        self._recorder.record(events.PrefixCacheReset(now, len(self._prefix_cache)))
        self._prefix_cache.reset()
        self._block_pool.forget_cached()
        for table in self._tables.values():
            table.num_cached, table.may_cache = 0, False

    def check_integrity(self) -> None:
        """Assert that tables, pool and index agree: no block lost, none owned by a stranger."""
        cached = self._prefix_cache.check_integrity() if self._prefix_cache is not None else set[int]()
        self._block_pool.check_integrity(cached)
        num_owners: dict[int, int] = {}
        for table in self._tables.values():
            assert len(table.block_ids) + table.num_owed <= table.max_blocks + (table.num_forked_slots > 0)
            assert len(set(table.block_ids)) == len(table.block_ids)
            for block_id in table.block_ids:
                num_owners[block_id] = num_owners.get(block_id, 0) + 1
        for source, _ in self._copies.values():
            num_owners[source] = num_owners.get(source, 0) + 1
        assert len(num_owners) == self._block_pool.num_used_blocks
        assert all(self._block_pool.ref_cnt(block_id) == count for block_id, count in num_owners.items())
        assert self._num_owed == sum(table.num_owed for table in self._tables.values())
        assert self._num_growing == sum(table.grows for table in self._tables.values())
        assert self._num_owed <= self._block_pool.num_available_blocks

    def _take_prefix(self, table: _BlockTable, prefix: Sequence[int], now: float) -> None:
        request, pool = table.request, self._block_pool
        num_hit_tokens = len(prefix) * self.block_size
        held = tuple(block_id for block_id in prefix if pool.ref_cnt(block_id) > 0)
        pool.acquire(prefix)
        table.block_ids += prefix
        table.num_cached = len(prefix)
        if self._prefix_cache is None or request.needs_all_logits:
            return
        if request.num_preemptions == 0:
            self._num_queried_tokens += request.num_tokens
            self._num_hit_tokens += num_hit_tokens
        if prefix:
            self._recorder.record(
                events.BlocksHit(now, request.request_id, tuple(prefix), num_hit_tokens, held)
            )
        miss = self._prefix_cache.explain_miss(request, prefix)
        differs_at = None if miss.differs_at is None else num_hit_tokens + miss.differs_at
        self._recorder.record(
            events.PrefixMissed(
                now, request.request_id, num_hit_tokens, miss.reason, differs_at, miss.evicted_at_s
            )
        )

    def _own_last_block(self, table: _BlockTable, now: float) -> None:
        """Before a fork's first write: copy its partly filled last block, or take it over if left alone."""
        source, table.num_forked_slots = table.block_ids[-1], 0
        if self._block_pool.ref_cnt(source) == 1 and not self._block_pool.is_cached(source):
            table.num_owed -= 1
            self._num_owed -= 1
            return
        (target,) = self._take_blocks(table, 1, now)
        table.block_ids[-1] = target
        # The table's reference to the source keeps it in place until the step has copied it.
        self._copies[table.request.request_id] = (source, target)
        self._recorder.record(events.BlocksCopied(now, table.request.request_id, ((source, target),)))

    def _take_blocks(self, table: _BlockTable, num_blocks: int, now: float) -> list[int]:
        """New blocks for one table, promised ones first."""
        num_kept = min(table.num_owed, num_blocks)
        table.num_owed -= num_kept
        self._num_owed -= num_kept
        allocation = self._block_pool.allocate(num_blocks)
        assert allocation is not None, "promises exceed the cache"
        evicted = allocation.evicted_block_ids
        if evicted:
            assert self._prefix_cache is not None
            for block_id in evicted:
                self._prefix_cache.evict(block_id, now)
            self._num_evicted_blocks += len(evicted)
            self._recorder.record(events.BlocksEvicted(now, table.request.request_id, tuple(evicted)))
        return allocation.block_ids

    def _cache_blocks(self, cache: PrefixCache, table: _BlockTable, end: int, now: float) -> None:
        """File the table's full blocks up to `end`; use the one that is there if it is the same."""
        request, block_ids, pool = table.request, table.block_ids, self._block_pool
        cached: list[int] = []
        merges: list[tuple[int, int]] = []
        for index in range(table.num_cached, end):
            parent: Parent = block_ids[index - 1] if index else request.cache_salt
            token_ids, own = cache.block_tokens(request, index), block_ids[index]
            own_hash = cache.hash_of(request, index)
            known = cache.find(own_hash, parent, token_ids)
            if known is not None and pool.ref_cnt(own) == 1:
                pool.acquire([known])
                pool.free([own])
                block_ids[index] = known
                merges.append((own, known))
            elif not cache.holds_hash(own_hash):
                cache.insert(own, CachedBlock(own_hash, parent, token_ids))
                pool.mark_cached(own)
                cached.append(own)
            else:
                table.may_cache = False
                break
            table.num_cached = index + 1
        if cached:
            self._recorder.record(events.BlocksCached(now, request.request_id, tuple(cached)))
        if merges:
            self._recorder.record(events.BlocksMerged(now, request.request_id, tuple(merges)))

    def _free_blocks(self, request_id: str, block_ids: Sequence[int], now: float) -> None:
        freed = self._block_pool.free(block_ids)
        if freed:
            self._recorder.record(events.BlocksFreed(now, request_id, tuple(freed)))
