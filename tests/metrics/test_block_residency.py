"""How long blocks live, lie idle and wait for their next use, by hand."""

from __future__ import annotations

from ridgeline.core import events as ev
from ridgeline.metrics.block_residency import BlockResidency
from ridgeline.metrics.buckets import Distribution


class Watched(Distribution):
    """Keeps the values themselves."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        super().__init__((1.0,))
        self.values: list[float] = []

    def observe(self, value: float, times: int = 1) -> None:
        super().observe(value, times)
        self.values += [value] * times


def observed(*events: ev.Event) -> tuple[list[float], list[float], list[float]]:
    """Lifetimes, idle times and reuse gaps."""
    kinds = Watched(), Watched(), Watched()
    residency = BlockResidency(*kinds)
    for event in events:
        residency.apply(event)
    return kinds[0].values, kinds[1].values, kinds[2].values


def test_a_block_that_is_found_again_and_then_evicted() -> None:
    lifetimes, idle, gaps = observed(
        ev.BlocksAllocated(10.0, "a", (1, 2)),
        ev.BlocksFreed(13.0, "a", (2, 1)),
        ev.BlocksHit(15.0, "b", (1,), 32),
        ev.BlocksHit(16.0, "c", (1,), 32, (1,)),
        ev.BlocksFreed(20.0, "c", (1,)),
        ev.BlocksEvicted(21.0, "d", (2, 1)),
        ev.BlocksAllocated(21.0, "d", (2, 1)),
    )
    assert (lifetimes, idle, gaps) == ([11.0, 11.0], [8.0, 1.0], [5.0, 1.0])


def test_a_block_begins_anew_with_each_owner() -> None:
    lifetimes, idle, gaps = observed(
        ev.BlocksAllocated(1.0, "a", (1, 5)),
        ev.BlocksFreed(2.0, "a", (1, 5)),
        ev.BlocksAllocated(7.0, "b", (1,)),
        ev.BlocksCopied(7.5, "b", ((1, 5),)),
        ev.BlocksMerged(8.0, "c", ((9, 1),)),
        ev.BlocksFreed(9.0, "c", (1, 5)),
        ev.BlocksEvicted(10.0, "d", (1, 5)),
    )
    assert (lifetimes, idle, gaps) == ([3.0, 2.5], [1.0, 1.0], [1.0])


def test_blocks_from_before_the_first_event_are_not_known() -> None:
    assert observed(
        ev.BlocksHit(1.0, "a", (1,), 32), ev.BlocksFreed(2.0, "a", (1,)), ev.BlocksEvicted(3.0, "b", (1,))
    ) == ([], [], [])
