from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeline.errors import EngineError
from ridgeline.kernels import ops, reference
from ridgeline.kernels.reference import PagedContext


@dataclass(frozen=True)
class Context:
    """Keys and values of one sequence, [length, KV heads, head_dim], and queries of its last tokens."""

    keys: NDArray[np.float16]
    values: NDArray[np.float16]
    query: NDArray[np.float32]  # [num_queries, heads, head_dim]


def make_context(length: int, num_queries: int, *, heads=(6, 2), head_dim=16, seed=0) -> Context:
    rng = np.random.default_rng([seed, length])
    num_heads, num_kv_heads = heads
    keys, values = rng.normal(0, 1, (2, length, num_kv_heads, head_dim)).astype(np.float16)
    query = rng.normal(0, 1, (length, num_heads, head_dim)).astype(np.float32)
    return Context(keys, values, query[length - num_queries :])


def make_call(contexts: Sequence[Context], block_size: int, *, garbage: float = np.nan):
    """Arguments of `attention`: contexts scattered over blocks in mixed order, free slots full of garbage."""
    num_kv_heads, head_dim = contexts[0].keys.shape[1:]
    needed = [-(-len(context.keys) // block_size) for context in contexts]
    block_ids = np.random.default_rng(0).permutation(sum(needed) + 1).astype(np.int32)
    cache = np.full((len(block_ids), 1, num_kv_heads, 2, head_dim * block_size), garbage, np.float16)
    tables = np.zeros((len(contexts), max(needed)), np.int32)
    positions: list[int] = []
    starts = [0]
    for row, context, count in zip(tables, contexts, needed, strict=True):
        row[:count], block_ids = block_ids[:count], block_ids[count:]
        for position, (key, value) in enumerate(zip(context.keys, context.values, strict=True)):
            block = cache[row[position // block_size], 0]
            offset = position % block_size
            block[:, 0].reshape(num_kv_heads, head_dim, block_size)[:, :, offset] = key
            block[:, 1].reshape(num_kv_heads, block_size, head_dim)[:, offset] = value
        positions += range(len(context.keys) - len(context.query), len(context.keys))
        starts.append(len(positions))
    query = np.concatenate([context.query for context in contexts])
    return query, cache, PagedContext(tables, np.asarray(positions, np.int32), np.asarray(starts, np.int32))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 33, 200, 511, 512, 513, 1100])
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_equals_the_twin(assert_close, isa, length, block_size):
    call = make_call([make_context(length, min(length, 3))], block_size)
    assert_close("attention", ops.attention(*call, isa=isa), reference.attention(*call))


@pytest.mark.parametrize("heads", [(1, 1), (2, 2), (3, 1), (4, 1), (14, 2), (9, 3)])
@pytest.mark.parametrize("head_dim", [8, 24, 64, 80, 128])
def test_any_number_and_size_of_heads(assert_close, isa, heads, head_dim):
    call = make_call([make_context(40, 2, heads=heads, head_dim=head_dim)], 16)
    assert_close("attention", ops.attention(*call, isa=isa), reference.attention(*call))


@pytest.mark.parametrize("size", [30.0, 1e-4])
def test_extreme_scores(assert_close, isa, size):
    context = make_context(600, 2)
    scaled = Context(context.keys, context.values, context.query * np.float32(size))
    call = make_call([scaled], 32)
    assert_close("attention", ops.attention(*call, isa=isa), reference.attention(*call))


def test_bits_do_not_depend_on_batch_chunks_blocks_threads_or_instruction_set():
    context = make_context(1100, 1100)
    others = [make_context(length, 5, seed=length) for length in (5, 77, 640)]
    call = make_call([context], 32)
    whole = ops.attention(*call)

    def part(start: int, end: int, *, block_size=32, num_threads=1, isa=None, garbage=np.nan):
        chunk = Context(context.keys[:end], context.values[:end], context.query[start:end])
        call = make_call([*others, chunk], block_size, garbage=garbage)
        out = ops.attention(*call, num_threads=num_threads, isa=isa)
        np.testing.assert_array_equal(out[15:], whole[start:end])

    for isa in ops.available_isas():
        part(1090, 1100, isa=isa)
    for block_size in (16, 64):
        part(500, 600, block_size=block_size)
    for num_threads in (2, 3):
        part(0, 1100, num_threads=num_threads)
    for garbage in (0, 1, np.inf):
        part(33, 34, garbage=garbage)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_one_token_with_a_long_context_is_shared_by_ranges(isa, num_threads):
    context = make_context(2100, 1)
    call = make_call([context], 32)
    alone = ops.attention(*call, num_threads=num_threads, isa=isa)
    many = make_call([context] * 9, 32)
    for row in ops.attention(*many, isa=isa):  # enough items: not shared
        np.testing.assert_array_equal(row, alone[0])


def test_a_batch_that_would_read_outside_the_cache_is_refused():
    query, cache, context = make_call([make_context(40, 2)], 16)
    for field, index, value in [
        ("block_tables", (0, 2), len(cache)),
        ("block_tables", (0, 0), -1),
        ("positions", 1, 48),
        ("positions", 0, 37),
        ("query_start_loc", 0, 1),
    ]:
        wrong = deepcopy(context)
        getattr(wrong, field)[index] = value
        with pytest.raises(EngineError):
            ops.attention(query, cache, wrong)
