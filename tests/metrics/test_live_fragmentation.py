"""Slack of a recorded run, by hand and by the arithmetic of last blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline import LLM, SamplingParams
from ridgeline.core import events as ev
from ridgeline.metrics.block_map import block_frames
from ridgeline.metrics.live_fragmentation import live_fragmentation, request_trace_of
from ridgeline.outputs import FinishReason
from ridgeline.workload.request_trace import TraceRequest


def test_sums_by_hand() -> None:
    events = [
        ev.BlocksAllocated(0, "a", (0, 1)),
        ev.BlocksAllocated(0, "b", (2,)),
        ev.StepFinished(0, 0, (("a", 0, 5), ("b", 0, 3)), 0.0, {}),
        ev.StepFinished(1, 1, (("a", 5, 1), ("b", 3, 1)), 0.0, {}),
    ]
    live = live_fragmentation(block_frames(events, block_size=4), 4)
    assert (live.num_steps, live.num_token_slots, live.num_slack_slots, live.num_sequences) == (2, 18, 6, 4)
    assert live.useful_of_held == 18 / 24
    assert live.slack_per_sequence == 1.5
    nothing = live_fragmentation([], 4)
    assert nothing.useful_of_held is nothing.slack_per_sequence is None


def test_a_run_becomes_a_trace() -> None:
    events = [
        ev.RequestArrived(2.0, "a", 1.0, 7),
        ev.RequestArrived(2.5, "b", 1.0, 5),
        ev.RequestArrived(2.5, "c", 1.0, 5),
        ev.RequestFinished(3.0, "a", FinishReason.STOP, 4),
        ev.RequestFinished(3.0, "c", FinishReason.ABORT, 0),
    ]
    assert request_trace_of(events) == [TraceRequest(0.0, 7, 4)]


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_a_long_run_has_half_a_block_of_slack(tiny_model: Path, block_size: int) -> None:
    # From one token to a whole number of blocks: every fill of the last block comes up equally often.
    params = SamplingParams(max_tokens=128, ignore_eos=True)
    with LLM(str(tiny_model), block_size=block_size, kv_cache_bytes=2**22) as llm:
        llm.generate([[5]], params, progress=False)
        frames = list(block_frames(llm.parts.event_log.events(), block_size=block_size))
        trace = request_trace_of(llm.parts.event_log.events())
    live = live_fragmentation(frames[:-1], block_size)  # the request is over after the last step
    slack = live.num_slack_slots / live.num_sequences
    assert live.num_sequences == 127
    assert slack == pytest.approx((block_size - 1) / 2 * 128 / 127)
    assert trace == [TraceRequest(0.0, 1, 128)]
