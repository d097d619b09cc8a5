"""Replays: sums that close, the published result, and the arithmetic of last blocks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import ConfigError
from ridgeline.perf.allocators import PAGED_BLOCK_SIZES, PagedAllocator, allocators_to_compare
from ridgeline.perf.fragmentation import SHARES, Replay, compare_allocators, expected_slack, replay
from ridgeline.workload.request_trace import TraceRequest
from ridgeline.workload.sharegpt_like import sharegpt_like_trace


@pytest.fixture(scope="module")
def replays() -> dict[str, Replay]:
    """The built-in workload at the paper's own sizes: OPT-13B on 40 GB has 15.7k slots (table 1)."""
    trace = sharegpt_like_trace(600, request_rate=10, seed=0)
    return {r.allocator_name: r for r in compare_allocators(trace, capacity=15_700, max_model_len=2048)}


def test_reserving_memory_is_20_to_38_percent_useful(replays: dict[str, Replay]) -> None:
    # PagedAttention (2023), figure 2: 20.4, 26.8 and 38.2 %.
    useful = [replays[f"reserve {kind}"].shares()["used"] for kind in ("max", "pow2", "oracle")]
    assert useful == pytest.approx([0.204, 0.268, 0.382], abs=0.03)


def test_paged_memory_is_more_than_96_percent_useful_at_16(replays: dict[str, Replay]) -> None:
    # The same figure: 96.3 %.
    assert replays["paged 16"].shares()["used"] > 0.96


def test_more_useful_memory_means_more_requests(replays: dict[str, Replay]) -> None:
    fit = [replays[name].mean_running for name in ("reserve max", "reserve oracle", "paged 128", "paged 16")]
    assert fit == sorted(fit)
    assert fit[0] == 7  # ⌊15,700 / 2,048⌋
    assert fit[-1] > 4 * fit[0]


@pytest.mark.parametrize("block_size", PAGED_BLOCK_SIZES)
def test_slack_in_last_blocks_is_half_a_block(replays: dict[str, Replay], block_size: int) -> None:
    measured = replays[f"paged {block_size}"]
    assert expected_slack(block_size) == (block_size - 1) / 2
    assert measured.slack_per_sequence == pytest.approx(expected_slack(block_size), rel=0.05, abs=0.01)
    document = measured.document()
    assert document["useful_of_held"] == pytest.approx(document["expected_useful_of_held"], abs=0.005)
    assert measured.shares()["external"] == 0


def test_every_step_accounts_for_every_slot(replays: dict[str, Replay]) -> None:
    for replayed in replays.values():
        for step in replayed.steps:
            amounts = [getattr(step, name) for name in SHARES]
            assert min(amounts) >= 0
            assert sum(amounts) == replayed.capacity
        assert sum(replayed.shares().values()) == pytest.approx(1)
        assert replayed.steps[-1].num_waiting == 0


def test_a_replay_by_hand() -> None:
    # Two requests of 3 + 2 tokens (4 stay resident) in 8 slots, blocks of 2: step 1 holds 3 + 3 in 4 blocks.
    trace = [TraceRequest(0, 3, 2)] * 3
    steps = replay(trace, PagedAllocator("paged", 8, 2)).steps
    assert [(s.used, s.num_slack_slots, s.num_running, s.num_waiting) for s in steps] == [
        (6, 2, 2, 1),
        (8, 0, 2, 1),
        (3, 1, 1, 0),
        (4, 0, 1, 0),
    ]
    assert [(s.reserved, s.internal) for s in steps] == [(2, 0), (0, 0), (1, 0), (0, 0)]


def test_free_memory_in_pieces_that_are_too_small_is_external_fragmentation() -> None:
    # Four quarters of 16 slots: A B C and a free one. B leaves after step 1; D needs 8 in one piece.
    oracle = next(a for a in allocators_to_compare(16, 8) if a.name == "reserve oracle")
    trace = [TraceRequest(0, 2, 3), TraceRequest(0, 4, 1), TraceRequest(0, 2, 3), TraceRequest(0, 8, 1)]
    steps = replay(trace, oracle).steps
    assert [(s.external, s.unallocated, s.num_waiting) for s in steps] == [
        (0, 4, 1),
        (8, 0, 1),
        (8, 0, 1),
        (0, 8, 0),
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=25
    ),
    st.integers(128, 300),
)  # fmt: skip
def test_every_request_is_served_by_every_allocator(
    requests: list[tuple[float, int, int]], capacity: int
) -> None:
    trace = sorted((TraceRequest(*values) for values in requests), key=lambda r: r.arrived_at_s)
    for replayed in compare_allocators(trace, capacity=capacity, max_model_len=32):
        last = replayed.steps[-1]
        assert last.num_waiting == 0
        assert all(0 <= step.used <= capacity for step in replayed.steps)
        if replayed.block_size is not None:
            assert all(s.num_slack_slots <= s.num_running * (replayed.block_size - 1) for s in replayed.steps)


def test_what_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(ConfigError, match="request of 40 tokens"):
        compare_allocators([TraceRequest(0, 20, 20)], capacity=1000, max_model_len=32)
    with pytest.raises(ConfigError, match="capacity_tokens=127: must be ≥ 128"):
        compare_allocators([TraceRequest(0, 5, 5)], capacity=127, max_model_len=32)
