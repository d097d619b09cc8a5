"""Ways to give memory to requests whose length nobody knows yet, in slots of one token each.

Source of the kinds: Kwon et al., PagedAttention (2023), §3.1 and §6.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ridgeline.perf.heaps import BuddyHeap, FirstFitHeap, next_power_of_two
from ridgeline.perf.kv_memory import num_blocks_of

ReservedSlots = Callable[[int, int], int]
"""(prompt tokens, tokens at the end) → slots to reserve."""


class Allocator(Protocol):
    """Memory of `capacity` slots that requests take, grow in and give back."""

    name: str
    capacity: int
    num_held_slots: int
    num_copied_tokens: int

    def slots_for(self, num_tokens: int, num_final_tokens: int) -> int:
        """Slots a request takes that starts with `num_tokens` and will end with `num_final_tokens`."""
        ...

    def admit(self, request_id: int, num_tokens: int, num_final_tokens: int) -> bool:
        """Take them; False where they are not to be had."""
        ...

    def grow(self, request_id: int, num_tokens: int) -> bool:
        """Make room for the request's token number `num_tokens`; False where there is none."""
        ...

    def release(self, request_id: int) -> None:
        """Give all of the request's slots back."""
        ...

    def held_slots(self, request_id: int) -> int:
        """Slots the request holds, filled or not."""
        ...


class ReservingAllocator:
    """One contiguous piece for a request's whole life, reserved at admission, placed by the buddy system."""

    def __init__(self, name: str, capacity: int, reserved_slots: ReservedSlots) -> None:
        self.name = name
        self.capacity = capacity
        self.num_held_slots = 0
        self.num_copied_tokens = 0
        self._reserved_slots = reserved_slots
        self._heap = BuddyHeap(capacity)
        self._pieces: dict[int, tuple[int, int]] = {}

    def slots_for(self, num_tokens: int, num_final_tokens: int) -> int:
        """The reservation, rounded up to a power of two."""
        return self._heap.size_for(self._reserved_slots(num_tokens, num_final_tokens))

    def admit(self, request_id: int, num_tokens: int, num_final_tokens: int) -> bool:
        """Reserve the piece."""
        size = self.slots_for(num_tokens, num_final_tokens)
        start = self._heap.take(size)
        if start is None:
            return False
        self._pieces[request_id] = (start, size)
        self.num_held_slots += size
        return True

    def grow(self, request_id: int, num_tokens: int) -> bool:
        """Nothing to do: the piece is long enough."""
        assert num_tokens <= self._pieces[request_id][1]
        return True

    def release(self, request_id: int) -> None:
        """Give the piece back."""
        start, size = self._pieces.pop(request_id)
        self._heap.give(start)
        self.num_held_slots -= size

    def held_slots(self, request_id: int) -> int:
        """Size of the piece."""
        return self._pieces[request_id][1]


class GrowingAllocator:
    """One contiguous piece that is just large enough; one that is full grows in place or moves by copy.

    On a `FirstFitHeap` pieces are exact, on a `BuddyHeap` powers of two. While a piece moves, both are held.
    """

    def __init__(self, name: str, capacity: int, heap: FirstFitHeap | BuddyHeap) -> None:
        self.name = name
        self.capacity = capacity
        self.num_held_slots = 0
        self.num_copied_tokens = 0
        self._heap = heap
        self._pieces: dict[int, tuple[int, int]] = {}

    def slots_for(self, num_tokens: int, num_final_tokens: int) -> int:  # noqa: ARG002 - the end is unknown
        """The tokens there are, as the heap rounds them."""
        return self._heap.size_for(num_tokens)

    def admit(self, request_id: int, num_tokens: int, num_final_tokens: int) -> bool:
        """Take a piece for the tokens there are."""
        start = self._heap.take(num_tokens)
        if start is None:
            return False
        size = self.slots_for(num_tokens, num_final_tokens)
        self._pieces[request_id] = (start, size)
        self.num_held_slots += size
        return True

    def grow(self, request_id: int, num_tokens: int) -> bool:
        """Use the next slot of the piece, or the one behind it, or move."""
        start, size = self._pieces[request_id]
        if num_tokens <= size:
            return True
        new_start = start
        if not (isinstance(self._heap, FirstFitHeap) and self._heap.extend(start)):
            moved = self._heap.take(num_tokens)
            if moved is None:
                return False
            self._heap.give(start)
            self.num_copied_tokens += num_tokens - 1
            new_start = moved
        new_size = self._heap.size_for(num_tokens)
        self._pieces[request_id] = (new_start, new_size)
        self.num_held_slots += new_size - size
        return True

    def release(self, request_id: int) -> None:
        """Give the piece back."""
        start, size = self._pieces.pop(request_id)
        self._heap.give(start)
        self.num_held_slots -= size

    def held_slots(self, request_id: int) -> int:
        """Size of the piece."""
        return self._pieces[request_id][1]


class PagedAllocator:
    """Blocks of `block_size` slots, any free one as good as any other. Slots that fill no block are lost."""

    def __init__(self, name: str, capacity: int, block_size: int) -> None:
        self.name = name
        self.capacity = capacity
        self.block_size = block_size
        self.num_held_slots = 0
        self.num_copied_tokens = 0
        self._free_blocks = capacity // block_size
        self._blocks: dict[int, int] = {}

    def slots_for(self, num_tokens: int, num_final_tokens: int) -> int:  # noqa: ARG002 - the end is unknown
        """Whole blocks for the tokens there are."""
        return num_blocks_of(num_tokens, self.block_size) * self.block_size

    def admit(self, request_id: int, num_tokens: int, num_final_tokens: int) -> bool:
        """Take blocks for the tokens there are."""
        self._blocks[request_id] = 0
        if self._take(request_id, self.slots_for(num_tokens, num_final_tokens) // self.block_size):
            return True
        del self._blocks[request_id]
        return False

    def grow(self, request_id: int, num_tokens: int) -> bool:
        """Use the next slot of the last block, or take a block."""
        if num_tokens <= self._blocks[request_id] * self.block_size:
            return True
        return self._take(request_id, 1)

    def release(self, request_id: int) -> None:
        """Give the blocks back."""
        num_blocks = self._blocks.pop(request_id)
        self._free_blocks += num_blocks
        self.num_held_slots -= num_blocks * self.block_size

    def held_slots(self, request_id: int) -> int:
        """Slots of the request's blocks."""
        return self._blocks[request_id] * self.block_size

    def _take(self, request_id: int, num_blocks: int) -> bool:
        if num_blocks > self._free_blocks:
            return False
        self._free_blocks -= num_blocks
        self._blocks[request_id] += num_blocks
        self.num_held_slots += num_blocks * self.block_size
        return True


PAGED_BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


def allocators_to_compare(capacity: int, max_model_len: int) -> list[Allocator]:
    """Fresh memories of `capacity` slots of every kind.

    `reserve max`, `reserve pow2` and `reserve oracle` are the paper's three Orcas: a piece for
    `max_model_len` tokens; for the prompt and the output's next power of two; for the exact end.
    """

    def reserve_pow2(num_tokens: int, num_final_tokens: int) -> int:
        return min(num_tokens + next_power_of_two(num_final_tokens - num_tokens + 1), max_model_len)

    return [
        ReservingAllocator("reserve max", capacity, lambda _tokens, _final: max_model_len),
        ReservingAllocator("reserve pow2", capacity, reserve_pow2),
        ReservingAllocator("reserve oracle", capacity, lambda _tokens, final: final),
        GrowingAllocator("first fit, growing", capacity, FirstFitHeap(capacity)),
        GrowingAllocator("buddy, growing", capacity, BuddyHeap(capacity)),
        *(PagedAllocator(f"paged {size}", capacity, size) for size in PAGED_BLOCK_SIZES),
    ]
