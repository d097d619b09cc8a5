"""PrefixCache: what is found, what never is, and why not."""

from __future__ import annotations

import gc

import pytest

from ridgeline.core.events import MissReason
from ridgeline.core.prefix_cache import CachedBlock, Miss, PrefixCache, block_hash, root_hash
from ridgeline.core.request import Request
from ridgeline.sampling_params import SamplingParams

BLOCK = 4


def request_of(token_ids: list[int], *, salt: str | None = None, name: str = "r") -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=token_ids,
        sampling_params=SamplingParams(),
        arrived_at_s=0.0,
        seed=0,
        max_num_tokens=len(token_ids) + 1,
        cache_salt=salt,
    )


def cached(token_ids: list[int], *, salt: str | None = None, **arguments: object) -> PrefixCache:
    """A cache whose blocks 10, 11, … hold these tokens."""
    cache = PrefixCache(BLOCK, **arguments)  # type: ignore[arg-type]
    request = request_of(token_ids, salt=salt, name="owner")
    for index in range(len(token_ids) // BLOCK):
        parent = 9 + index if index else salt
        tokens = cache.block_tokens(request, index)
        cache.insert(10 + index, CachedBlock(cache.hash_of(request, index), parent, tokens))
    assert cache.check_integrity() == set(range(10, 10 + len(token_ids) // BLOCK))
    return cache


def test_cached_blocks_make_no_collection_longer() -> None:
    block = CachedBlock(b"hash", None, PrefixCache(BLOCK).block_tokens(request_of([1, 2, 3, 4]), 0))
    gc.collect()
    assert not gc.is_tracked(block)
    assert not gc.is_tracked(block.token_ids)


@pytest.mark.parametrize(
    ("num_tokens", "found"), [(3, []), (4, []), (5, [10]), (8, [10]), (9, [10, 11]), (40, [10, 11, 12])]
)
def test_whole_blocks_are_found_and_the_last_token_is_always_computed(
    num_tokens: int, found: list[int]
) -> None:
    cache = cached(list(range(12)))
    assert cache.find_prefix(request_of(list(range(num_tokens)))) == found


@pytest.mark.parametrize(
    ("tokens", "miss"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], Miss(MissReason.PARTIAL_BLOCK)),
        ([0, 1, 2, 3, 4, 9, 6, 7, 8], Miss(MissReason.DIFFERS, differs_at=1)),
        ([0, 1, 9, 3, 4], Miss(MissReason.DIFFERS, differs_at=2)),
        ([9, 1, 2, 3, 4], Miss(MissReason.COLD)),
        ([0, 1, 2], Miss(MissReason.PARTIAL_BLOCK)),
        ([*range(12), 1, 2, 3, 4, 5], Miss(MissReason.COLD)),
    ],
)
def test_a_miss_says_where_and_why(tokens: list[int], miss: Miss) -> None:
    cache = cached(list(range(12)))
    request = request_of(tokens)
    assert cache.explain_miss(request, cache.find_prefix(request)) == miss


def test_an_evicted_block_is_remembered_with_its_instant() -> None:
    cache = cached(list(range(8)))
    cache.evict(11, now=3.5)
    request = request_of(list(range(9)))
    assert cache.find_prefix(request) == [10]
    assert cache.explain_miss(request, [10]) == Miss(MissReason.EVICTED, evicted_at_s=3.5)
    with pytest.raises(AssertionError, match="before one that follows"):
        cached(list(range(8))).evict(10, now=1.0)


def test_another_salt_finds_nothing_and_says_so() -> None:
    cache = cached(list(range(8)), salt="a")
    assert cache.find_prefix(request_of(list(range(9)), salt="a", name="same")) == [10, 11]
    for salt in (None, "b", ""):
        request = request_of(list(range(9)), salt=salt, name=f"other {salt}")
        assert cache.find_prefix(request) == []
        assert cache.explain_miss(request, []) == Miss(MissReason.SALT)


def test_a_collision_costs_a_hit_and_never_serves_other_tokens() -> None:
    cache = cached([1, 1, 1, 1], hash_block=lambda parent, token_ids: b"same")
    assert cache.find_prefix(request_of([1, 1, 1, 1, 5], name="a")) == [10]
    assert cache.find_prefix(request_of([2, 1, 1, 1, 5], name="b")) == []
    # The second block has the same tokens and the same hash, but another block before it.
    assert cache.find_prefix(request_of([1] * 9, name="c")) == [10]


def test_hashes_chain_tokens_and_salt() -> None:
    assert block_hash(root_hash(None), [1, 2]) != block_hash(root_hash(""), [1, 2])
    assert block_hash(root_hash(None), [1, 2]) != block_hash(root_hash(None), [2, 1])
    assert block_hash(block_hash(root_hash(None), [1]), [2]) != block_hash(root_hash(None), [2])
    assert len({root_hash(salt) for salt in (None, "", "a", "b", "\ud800")}) == 5


def test_a_reset_forgets_everything() -> None:
    cache = cached(list(range(12)))
    cache.reset()
    request = request_of(list(range(12)))
    assert len(cache) == 0
    assert cache.find_prefix(request) == []
    assert cache.explain_miss(request, []) == Miss(MissReason.COLD)
