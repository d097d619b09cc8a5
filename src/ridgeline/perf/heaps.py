"""Contiguous memory in slots: first fit over holes, and the buddy system."""

from __future__ import annotations

from bisect import bisect_left


def next_power_of_two(number: int) -> int:
    """The least power of two ≥ `number`."""
    return 1 << max(number - 1, 0).bit_length()


class FirstFitHeap:
    """Pieces of exactly the size asked for, each from the lowest hole that is large enough."""

    def __init__(self, capacity: int) -> None:
        self._holes: list[tuple[int, int]] = [(0, capacity)]  # (start, size), by start, never touching
        self._sizes: dict[int, int] = {}

    def size_for(self, num_slots: int) -> int:
        """Slots that a piece of `num_slots` takes: no more."""
        return num_slots

    def take(self, num_slots: int) -> int | None:
        """Start of a new piece; None where no hole is large enough."""
        for index, (start, size) in enumerate(self._holes):
            if size >= num_slots:
                self._shrink_hole(index, num_slots)
                self._sizes[start] = num_slots
                return start
        return None

    def extend(self, start: int) -> bool:
        """Make the piece at `start` one slot longer in place; False where the next slot is taken."""
        end = start + self._sizes[start]
        index = bisect_left(self._holes, (end, 0))
        if index == len(self._holes) or self._holes[index][0] != end:
            return False
        self._shrink_hole(index, 1)
        self._sizes[start] += 1
        return True

    def give(self, start: int) -> None:
        """Give a piece back; it melts with the holes it touches."""
        size = self._sizes.pop(start)
        index = bisect_left(self._holes, (start, 0))
        if index < len(self._holes) and self._holes[index][0] == start + size:
            size += self._holes.pop(index)[1]
        if index > 0 and sum(self._holes[index - 1]) == start:
            start, before = self._holes.pop(index - 1)
            size += before
            index -= 1
        self._holes.insert(index, (start, size))

    def pieces(self) -> dict[int, int]:
        """Start → size of every piece."""
        return dict(self._sizes)

    def _shrink_hole(self, index: int, num_slots: int) -> None:
        start, size = self._holes[index]
        if size == num_slots:
            del self._holes[index]
        else:
            self._holes[index] = (start + num_slots, size - num_slots)


class BuddyHeap:
    """Pieces of powers of two at multiples of their size, halved on demand, melted with their buddies.

    A capacity that is no power of two is a row of such pieces, largest first. Source: Knuth, TAOCP 1, 2.5.
    """

    def __init__(self, capacity: int) -> None:
        self._free: dict[int, set[int]] = {1 << order: set() for order in range(capacity.bit_length())}
        self._sizes: dict[int, int] = {}
        start = 0
        for size in sorted(self._free, reverse=True):
            if capacity & size:
                self._free[size].add(start)
                start += size

    def size_for(self, num_slots: int) -> int:
        """Slots that a piece of `num_slots` takes: the next power of two."""
        return next_power_of_two(num_slots)

    def take(self, num_slots: int) -> int | None:
        """Start of a new piece of the next power of two; None where none is free."""
        size = found = next_power_of_two(num_slots)
        while found in self._free and not self._free[found]:
            found *= 2
        if found not in self._free:
            return None
        start = min(self._free[found])
        self._free[found].remove(start)
        while found > size:
            found //= 2
            self._free[found].add(start + found)
        self._sizes[start] = size
        return start

    def give(self, start: int) -> None:
        """Give a piece back; it melts with its buddy for as long as that is free."""
        size = self._sizes.pop(start)
        while size in self._free and (start ^ size) in self._free[size]:
            self._free[size].remove(start ^ size)
            start &= ~size
            size *= 2
        self._free[size].add(start)

    def pieces(self) -> dict[int, int]:
        """Start → size of every piece."""
        return dict(self._sizes)
