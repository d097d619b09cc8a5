"""The map of the blocks: by hand, and against the pool of a running engine after every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline import LLM, SamplingParams
from ridgeline.core import events as ev
from ridgeline.core.events import MissReason
from ridgeline.core.scheduler import Scheduler
from ridgeline.metrics.block_happenings import Kind, miss_text
from ridgeline.metrics.block_map import BlockRead, BlockState, Frame, block_frames
from ridgeline.outputs import FinishReason


def step(at_s: float, step_id: int, *composition: tuple[str, int, int]) -> ev.StepFinished:
    return ev.StepFinished(at_s, step_id, composition, 0.0, {})


def states(frame: Frame) -> dict[int, tuple[BlockState, tuple[str, ...], int]]:
    return {b.block_id: (b.state, b.owners, b.num_tokens) for b in frame.blocks}


def test_one_request_from_its_first_block_to_its_end() -> None:
    events = [
        ev.RequestArrived(0.0, "a", 0.0, 5),
        ev.RequestScheduled(0.1, "a"),
        ev.BlocksAllocated(0.1, "a", (7, 3)),
        ev.BlocksFilled(0.2, "a", (7,)),
        ev.BlocksCached(0.2, "a", (7,)),
        step(0.2, 0, ("a", 0, 5)),
        step(0.3, 1, ("a", 5, 1)),
        ev.RequestFinished(0.3, "a", FinishReason.LENGTH, 2),
        ev.BlocksFreed(0.3, "a", (3, 7)),
    ]
    first, second, last = block_frames(events, block_size=4)
    assert states(first) == {3: (BlockState.FILLING, ("a",), 1), 7: (BlockState.FULL, ("a",), 4)}
    assert states(second)[3] == (BlockState.FILLING, ("a",), 2)
    assert states(last) == {3: (BlockState.FREE, (), 0), 7: (BlockState.IDLE, (), 4)}
    assert [f.step_id for f in (first, second, last)] == [0, 1, None]
    assert (first.num_used_blocks, first.num_slack_slots(4), last.num_idle_blocks) == (2, 3, 1)
    kinds = [h.kind for f in (first, second, last) for h in f.happenings]
    assert kinds == [
        Kind.ARRIVED, Kind.SCHEDULED, Kind.ALLOCATED, Kind.FILLED, Kind.CACHED, Kind.FINISHED, Kind.FREED,
    ]  # fmt: skip


def test_reads_follow_from_the_composition() -> None:
    allocated = ev.BlocksAllocated(0, "a", (5, 6, 2))
    whole, more = block_frames([allocated, step(0, 0, ("a", 0, 6)), step(1, 1, ("a", 6, 3))], block_size=4)
    # Rows 0…5: block 5 is seen by all of them, 1 + 2 + 3 + 4 + 4 + 4 slots; block 6 by two, 1 + 2.
    assert whole.reads == [BlockRead(5, "a", 6, 4, 18), BlockRead(6, "a", 2, 2, 3)]
    # Rows 6, 7, 8: block 5 whole three times; block 6: 3 + 4 + 4; block 2: 1.
    assert more.reads == [
        BlockRead(5, "a", 3, 4, 12), BlockRead(6, "a", 3, 4, 11), BlockRead(2, "a", 1, 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("block_size", [1, 3, 16, 32])
@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 70), (13, 1), (31, 2), (32, 40)])
def test_token_reads_are_every_rows_context(block_size: int, start: int, count: int) -> None:
    allocated = ev.BlocksAllocated(0, "a", tuple(range(-(-(start + count) // block_size))))
    (frame,) = block_frames([allocated, step(0, 0, ("a", start, count))], block_size=block_size)
    assert sum(r.num_token_reads for r in frame.reads) == sum(p + 1 for p in range(start, start + count))
    assert sum(r.num_tokens for r in frame.reads) == start + count
    assert frame.reads[0].num_rows == count


def test_what_a_finished_request_read_in_its_last_step_is_kept() -> None:
    events = [
        ev.BlocksAllocated(0, "a", (1,)),
        ev.RequestFinished(1, "a", FinishReason.STOP, 1),
        ev.BlocksFreed(1, "a", (1,)),
        step(1, 0, ("a", 0, 3)),
    ]
    (frame,) = block_frames(events, block_size=4)
    assert frame.reads == [BlockRead(1, "a", 3, 3, 6)]
    assert states(frame) == {1: (BlockState.FREE, (), 0)}


def test_shared_copied_merged_and_evicted_blocks() -> None:
    events = [
        ev.BlocksAllocated(0, "a", (0, 1)),
        ev.BlocksFilled(0, "a", (0,)),
        step(0, 0, ("a", 0, 6)),
        ev.BlocksShared(1, "b", (0, 1), "a", 6),
        ev.BlocksAllocated(1, "b", (2,)),
        step(1, 1, ("a", 6, 1)),
        ev.BlocksCopied(2, "b", ((1, 3),)),
        step(2, 2, ("a", 7, 1), ("b", 6, 1)),
        ev.BlocksFilled(3, "b", (3,)),
        ev.BlocksMerged(3, "b", ((3, 1),)),
        ev.BlocksFreed(3, "b", (3,)),
        step(3, 3, ("b", 7, 1)),
        ev.BlocksEvicted(4, "c", (9,)),
        ev.BlocksAllocated(4, "c", (9,)),
    ]
    _, shared, copied, merged, end = block_frames(events, block_size=4)
    assert states(shared)[1] == (BlockState.SHARED, ("a", "b"), 3)
    assert states(copied)[1] == (BlockState.FULL, ("a",), 4)
    assert states(copied)[3] == (BlockState.FILLING, ("b",), 3)
    assert [r.block_id for r in merged.reads] == [0, 3]  # it read its own block before that gave way
    assert states(merged)[1] == (BlockState.SHARED, ("a", "b"), 4)
    assert states(merged)[3] == (BlockState.FREE, (), 0)
    assert states(end)[9] == (BlockState.FILLING, ("c",), 0)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ev.PrefixMissed(3, "a", 32, MissReason.DIFFERS, differs_at=37), "differs at token 37"),
        (ev.PrefixMissed(3, "a", 0, MissReason.EVICTED, evicted_at_s=1.8), "evicted 1.2 s ago"),
        (ev.PrefixMissed(3, "a", 0, MissReason.SALT), "salt differs"),
        (ev.PrefixMissed(3, "a", 0, MissReason.PARTIAL_BLOCK), "partial block"),
        (ev.PrefixMissed(3, "a", 0, MissReason.COLD), "never computed before"),
    ],
)
def test_misses_say_why(event: ev.PrefixMissed, text: str) -> None:
    assert miss_text(event) == text
    (frame,) = block_frames([event], block_size=4)
    assert frame.happenings[0].text.endswith(f"then: {text}")


@pytest.mark.parametrize("caching", [True, False])
def test_the_map_is_the_pool_after_every_step(tiny_model: Path, caching: bool) -> None:
    shared = [(11 * i) % 300 for i in range(40)]
    prompts = [[*shared, *[(k * i) % 300 for i in range(1, 10 + 5 * k)]] for k in range(1, 6)]
    with _llm(tiny_model, caching) as llm:
        parts = llm.parts
        streams, scheduler = parts.request_streams, parts.engine.scheduler
        params = SamplingParams(temperature=0.8, seed=3, max_tokens=30, n=2, ignore_eos=True)
        for ids in prompts:
            prompt = parts.input_processor.parse_prompt_ids(ids)
            streams.add(streams.new_request_id(), prompt, params, arrived_at_s=0.0)
        seen = []
        while parts.engine.has_unfinished_requests:
            streams.step()
            seen.append((scheduler.occupancy, filled_slots(scheduler)))
        frames = [f for f in block_frames(parts.event_log.events(), block_size=16) if f.step_id is not None]
    assert len(frames) == len(seen)
    for frame, (occupancy, filled) in zip(frames, seen, strict=True):
        assert frame.num_used_blocks == occupancy.num_used_blocks
        assert frame.num_idle_blocks == occupancy.num_idle_blocks
        assert {b.block_id: b.num_tokens for b in frame.blocks if b.owners} == filled
        slack = sum(16 - count for count in filled.values())
        assert frame.num_slack_slots(16) == occupancy.num_slack_slots == slack
    kinds = {h.kind for f in frames for h in f.happenings}
    assert Kind.PREEMPTED in kinds
    if caching:
        assert {Kind.HIT, Kind.SHARED, Kind.COPIED, Kind.EVICTED} <= kinds
    else:
        assert Kind.HIT not in kinds
        assert frames[-1].num_idle_blocks == 0


def filled_slots(scheduler: Scheduler) -> dict[int, int]:
    """Tokens in every held block, from the requests themselves; a block that can be found is full."""
    filled: dict[int, int] = {}
    manager = scheduler._kv_cache_manager
    for table in manager._tables.values():
        for index, block_id in enumerate(table.block_ids):
            count = min(max(table.request.num_computed_tokens - 16 * index, 0), 16)
            findable = 16 * manager._block_pool.is_cached(block_id)
            filled[block_id] = max(filled.get(block_id, 0), count, findable)
    return filled


def _llm(model: Path, caching: bool) -> LLM:
    return LLM(
        str(model),
        block_size=16,
        max_num_seqs=6,
        max_num_batched_tokens=48,
        kv_cache_bytes=13 * 16 * _bytes_per_token(model),
        max_model_len=128,
        enable_prefix_caching=caching,
        watermark=0.0,
    )


def _bytes_per_token(model: Path) -> int:
    with LLM(str(model), kv_cache_bytes=2**22) as llm:
        return llm.parts.kv_shape.bytes_per_token
