"""PrefixCache: which block holds the K and V of which tokens after which prefix."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from ridgeline.core.events import MissReason
from ridgeline.core.request import Request

BlockHash = bytes
Parent = int | str | None
"""What stands before a block: the id of the block there, or the `cache_salt` before the first one."""

_HASH_BYTES = 16
_MAX_REMEMBERED_EVICTIONS = 10_000
_MAX_COMPARED = 64


def root_hash(cache_salt: str | None) -> BlockHash:
    """The hash that stands before a prompt's first block."""
    salt = b"" if cache_salt is None else b"salt" + cache_salt.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(salt, digest_size=_HASH_BYTES).digest()


def block_hash(parent_hash: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """Hash of a full block: of the one before it and its own token ids (BLAKE2b, 128 bits)."""
    return hashlib.blake2b(parent_hash + array("q", token_ids).tobytes(), digest_size=_HASH_BYTES).digest()


class CachedBlock(msgspec.Struct, frozen=True, gc=False):
    """What a cached block holds; like an event it is nothing for the garbage collector."""

    block_hash: BlockHash
    parent: Parent
    token_ids: tuple[int, ...]


class Miss(NamedTuple):
    """Why a lookup ended; `differs_at` counts tokens from the block's start."""

    reason: MissReason
    differs_at: int | None = None
    evicted_at_s: float | None = None


class PrefixCache:
    """Hash index of full blocks. Only the KVCacheManager writes to it.

    A block is found by hash and taken only if its tokens and the block before it are the very ones asked
    for, so a collision costs a hit and never serves another prompt's block. A block leaves the index
    after all that follow it: they are less recently used.
    """

    def __init__(
        self, block_size: int, *, hash_block: Callable[[BlockHash, Sequence[int]], BlockHash] = block_hash
    ) -> None:
        self._block_size = block_size
        self._hash_block = hash_block
        self._hashes: dict[str, list[BlockHash]] = {}
        self._block_ids: dict[BlockHash, int] = {}
        self._blocks: dict[int, CachedBlock] = {}
        self._children: dict[Parent, dict[int, None]] = {}
        self._first_blocks: dict[Parent, dict[int, None]] = {}
        self._evicted_at_s: OrderedDict[BlockHash, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, cached_hash: BlockHash, parent: Parent, token_ids: tuple[int, ...]) -> int | None:
        """Id of the block that holds exactly these tokens after this parent, or None."""
        block_id = self._block_ids.get(cached_hash)
        if block_id is None:
            return None
        block = self._blocks[block_id]
        return block_id if block.parent == parent and block.token_ids == token_ids else None

    def holds_hash(self, cached_hash: BlockHash) -> bool:
        """Whether some block is filed under this hash."""
        return cached_hash in self._block_ids

    def insert(self, block_id: int, block: CachedBlock) -> None:
        """File a block. Its hash must not be taken."""
        assert block.block_hash not in self._block_ids
        assert block_id not in self._blocks
        self._block_ids[block.block_hash] = block_id
        self._blocks[block_id] = block
        self._families(block.parent).setdefault(block.parent, {})[block_id] = None
        self._evicted_at_s.pop(block.block_hash, None)

    def evict(self, block_id: int, now: float) -> None:
        """Take a block out; its eviction is remembered for a while, to explain misses."""
        block = self._blocks.pop(block_id)
        assert block_id not in self._children, "a block is evicted before one that follows it"
        del self._block_ids[block.block_hash]
        families = self._families(block.parent)
        del families[block.parent][block_id]
        if not families[block.parent]:
            del families[block.parent]
        self._evicted_at_s[block.block_hash] = now
        if len(self._evicted_at_s) > _MAX_REMEMBERED_EVICTIONS:
            self._evicted_at_s.popitem(last=False)

    def reset(self) -> None:
        """Forget everything, evictions too."""
        for index in (self._block_ids, self._blocks, self._children, self._first_blocks, self._evicted_at_s):
            index.clear()

    def block_tokens(self, request: Request, index: int) -> tuple[int, ...]:
        """Token ids of the request's block at `index`."""
        return tuple(request.token_ids(index * self._block_size, (index + 1) * self._block_size))

    def hash_of(self, request: Request, index: int) -> BlockHash:
        """Hash of the request's full block at `index`; each is computed once, when first asked for."""
        hashes = self._hashes.setdefault(request.request_id, [])
        for next_index in range(len(hashes), index + 1):
            parent_hash = hashes[-1] if hashes else root_hash(request.cache_salt)
            hashes.append(self._hash_block(parent_hash, self.block_tokens(request, next_index)))
        return hashes[index]

    def forget(self, request: Request) -> None:
        """Drop the hashes of a request that is over."""
        self._hashes.pop(request.request_id, None)

    def find_prefix(self, request: Request) -> list[int]:
        """Blocks with the request's first tokens, in order, the last known token left out."""
        block_ids: list[int] = []
        parent: Parent = request.cache_salt
        for index in range(self._num_usable_blocks(request)):
            wanted = self.hash_of(request, index)
            if wanted not in self._block_ids:
                break
            block_id = self.find(wanted, parent, self.block_tokens(request, index))
            if block_id is None:
                break
            block_ids.append(block_id)
            parent = block_id
        return block_ids

    def shares_next_block(self, request: Request, other: Request) -> bool:
        """Whether the next block that `other` computes is not cached yet and begins `request` as well."""
        index = other.num_computed_tokens // self._block_size
        num_blocks = min(self._num_usable_blocks(request), other.num_tokens // self._block_size)
        if index >= num_blocks or self.hash_of(request, 0) != self.hash_of(other, 0):
            return False
        wanted = self.hash_of(request, index)
        return self.hash_of(other, index) == wanted and wanted not in self._block_ids

    def explain_miss(self, request: Request, prefix: Sequence[int]) -> Miss:
        """Why the request's block after `prefix` was not found, as far as is known."""
        index = len(prefix)
        if index == self._num_usable_blocks(request):
            return Miss(MissReason.PARTIAL_BLOCK)
        missed_hash = self.hash_of(request, index)
        token_ids = self.block_tokens(request, index)
        if missed_hash in self._evicted_at_s:
            return Miss(MissReason.EVICTED, evicted_at_s=self._evicted_at_s[missed_hash])
        if not prefix and self._is_under_another_salt(request.cache_salt, token_ids):
            return Miss(MissReason.SALT)
        parent = prefix[-1] if prefix else request.cache_salt
        siblings = islice(self._families(parent).get(parent, ()), _MAX_COMPARED)
        common = [_num_common(self._blocks[block_id].token_ids, token_ids) for block_id in siblings]
        if common and (prefix or max(common) > 0):
            return Miss(MissReason.DIFFERS, differs_at=max(common))
        return Miss(MissReason.COLD)

    def check_integrity(self) -> set[int]:
        """Assert that each block is filed under its own hash, after a parent that is there; their ids."""
        families = (*self._children.values(), *self._first_blocks.values())
        assert len(self._block_ids) == len(self._blocks) == sum(map(len, families))
        for block_id, block in self._blocks.items():
            assert self._block_ids[block.block_hash] == block_id
            assert block_id in self._families(block.parent)[block.parent]
            parent = block.parent
            above = self._blocks[parent].block_hash if isinstance(parent, int) else root_hash(parent)
            assert self._hash_block(above, block.token_ids) == block.block_hash
        return set(self._blocks)

    def _families(self, parent: Parent) -> dict[Parent, dict[int, None]]:
        return self._children if isinstance(parent, int) else self._first_blocks

    def _num_usable_blocks(self, request: Request) -> int:
        """Full blocks before the last known token, which is always computed."""
        return (request.num_tokens - 1) // self._block_size

    def _is_under_another_salt(self, cache_salt: str | None, token_ids: tuple[int, ...]) -> bool:
        salts = [
            s for s in islice(self._first_blocks, _MAX_COMPARED) if s != cache_salt and not isinstance(s, int)
        ]
        hashes = [self._hash_block(root_hash(salt), token_ids) for salt in salts]
        return any(self.find(h, s, token_ids) is not None for h, s in zip(hashes, salts, strict=True))


def _num_common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))
