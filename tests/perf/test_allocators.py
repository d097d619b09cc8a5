"""Heaps and allocators under random use: nothing overlaps, nothing is lost, all comes back."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.perf.allocators import PagedAllocator, allocators_to_compare
from ridgeline.perf.heaps import BuddyHeap, FirstFitHeap, next_power_of_two

CAPACITY, MAX_LEN = 1000, 64
NAMES = [allocator.name for allocator in allocators_to_compare(CAPACITY, MAX_LEN)]


def check_pieces(pieces: dict[int, int], capacity: int) -> None:
    end = 0
    for start, size in sorted(pieces.items()):
        assert start >= end, "pieces overlap"
        end = start + size
    assert end <= capacity


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200)), max_size=60), st.integers(1, 700))
def test_first_fit_pieces_never_overlap_and_holes_melt(ops: list[tuple[bool, int]], capacity: int) -> None:
    heap = FirstFitHeap(capacity)
    for takes, number in ops:
        pieces = sorted(heap.pieces())
        if takes:
            start = heap.take(number)
            taken = set()
            for at, size in heap.pieces().items():
                taken.update(range(at, at + size))
            if start is None:  # then really no run of free slots is that long
                free = "".join("#" if slot in taken else "." for slot in range(capacity))
                assert "." * number not in free
        elif pieces and number % 2:
            heap.give(pieces[number % len(pieces)])
        elif pieces:
            start = pieces[number % len(pieces)]
            size, end = heap.pieces()[start], start + heap.pieces()[start]
            next_is_free = end < capacity and all(not at <= end < at + n for at, n in heap.pieces().items())
            assert heap.extend(start) == next_is_free
            assert heap.pieces()[start] == size + next_is_free
        check_pieces(heap.pieces(), capacity)
    for start in heap.pieces():
        heap.give(start)
    assert heap.take(capacity) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200)), max_size=60), st.integers(1, 700))
def test_buddies_are_aligned_powers_of_two_and_melt(ops: list[tuple[bool, int]], capacity: int) -> None:
    heap = BuddyHeap(capacity)
    for takes, number in ops:
        pieces = sorted(heap.pieces())
        if takes:
            start = heap.take(number)
            if start is not None:
                assert heap.pieces()[start] == next_power_of_two(number)
                assert start % next_power_of_two(number) == 0
        elif pieces:
            heap.give(pieces[number % len(pieces)])
        check_pieces(heap.pieces(), capacity)
    for start in heap.pieces():
        heap.give(start)
    sizes = [1 << order for order in range(10) if capacity & (1 << order)]
    assert all(heap.take(size) is not None for size in sizes)
    assert heap.take(1) is None


@dataclass
class Held:
    num_tokens: int
    num_final_tokens: int


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40)
@given(data=st.data())
def test_every_allocator_keeps_its_books(name: str, data: st.DataObject) -> None:
    allocator = next(a for a in allocators_to_compare(CAPACITY, MAX_LEN) if a.name == name)
    held: dict[int, Held] = {}
    for request_id in range(data.draw(st.integers(1, 60))):
        op = data.draw(st.sampled_from(["admit", "admit", "grow", "grow", "grow", "release"]))
        if op == "admit":
            tokens = data.draw(st.integers(1, MAX_LEN))
            final = data.draw(st.integers(tokens, MAX_LEN))
            before = allocator.num_held_slots
            if allocator.admit(request_id, tokens, final):
                held[request_id] = Held(tokens, final)
                assert allocator.num_held_slots - before == allocator.slots_for(tokens, final)
            else:
                assert allocator.num_held_slots == before
        elif held:
            chosen = data.draw(st.sampled_from(sorted(held)))
            if op == "release":
                allocator.release(chosen)
                del held[chosen]
            elif held[chosen].num_tokens < held[chosen].num_final_tokens:
                held[chosen].num_tokens += allocator.grow(chosen, held[chosen].num_tokens + 1)
        assert allocator.num_held_slots == sum(map(allocator.held_slots, held)) <= CAPACITY
        for owner, state in held.items():
            assert allocator.held_slots(owner) >= state.num_tokens
            if isinstance(allocator, PagedAllocator):
                assert allocator.held_slots(owner) - state.num_tokens < allocator.block_size
    for request_id in held:
        allocator.release(request_id)
    assert allocator.num_held_slots == 0


def test_reservations_are_what_their_names_say() -> None:
    by_name = {a.name: a for a in allocators_to_compare(CAPACITY, MAX_LEN)}
    assert by_name["reserve max"].slots_for(5, 20) == 64
    assert by_name["reserve pow2"].slots_for(16, 31) == 32  # 16 outputs: 16 + 16
    assert by_name["reserve pow2"].slots_for(16, 32) == 64  # 17 outputs: 16 + 32, in a piece of 64
    assert by_name["reserve oracle"].slots_for(16, 33) == 64
    assert by_name["first fit, growing"].slots_for(16, 33) == 16
    assert by_name["buddy, growing"].slots_for(17, 33) == 32
    assert by_name["paged 16"].slots_for(17, 33) == 32


def test_a_piece_grows_in_place_or_moves_by_copy() -> None:
    first_fit = next(a for a in allocators_to_compare(100, 8) if a.name == "first fit, growing")
    assert first_fit.admit(0, 10, 50)
    assert first_fit.grow(0, 11)
    assert first_fit.num_copied_tokens == 0
    assert first_fit.admit(1, 10, 50)  # stands right behind
    assert first_fit.grow(0, 12)
    assert first_fit.num_copied_tokens == 11
