"""A record as a document: bytes of reads, relative times, the frames that tell the most."""

from __future__ import annotations

import json

from ridgeline.core import events as ev
from ridgeline.metrics.block_record import BlockRecord, block_record
from ridgeline.metrics.event_trace import TraceHeader
from ridgeline.outputs import FinishReason

HEADER = TraceHeader(
    model="m", block_size=4, num_blocks=10, bytes_per_token=100, bytes_per_token_formula="100 B"
)


def record() -> BlockRecord:
    events: list[ev.Event] = [ev.RequestArrived(5.0, "a", 4.0, 5), ev.BlocksAllocated(5.0, "a", (0, 1))]
    events += [ev.PrefixMissed(5.0, "a", 0, ev.MissReason.COLD)]
    events += [
        ev.StepFinished(6.0 + i, i, (("a", 5 + i - 5 * (i == 0), 5 if i == 0 else 1),), 0.0, {})
        for i in range(3)
    ]
    events += [ev.BlocksEvicted(9.0, "b", (7,)), ev.StepFinished(9.0, 3, (("a", 7, 1),), 0.0, {})]
    return block_record(HEADER, [*events, ev.RequestFinished(10.0, "a", FinishReason.STOP, 3)])


def test_the_document_counts_blocks_bytes_and_seconds() -> None:
    document = record().document()
    first = document["steps"][0]
    assert (first["used_blocks"], first["idle_blocks"], first["free_blocks"]) == (2, 0, 8)
    assert (first["slack_tokens"], first["read_bytes"], first["at_s"]) == (3, 500, 1.0)
    assert first["reads"][0] == {
        "block_id": 0, "request_id": "a", "rows": 5, "tokens": 4, "bytes": 400, "token_reads": 14,
        "bytes_without_reuse": 1400,
    }  # fmt: skip
    assert document["prefix_lookups"][0]["text"] == "never computed before"
    assert document["steps"][-1]["used_blocks"] == 0
    read_back = json.loads(json.dumps(document, allow_nan=False))
    assert read_back["steps"] == document["steps"]
    assert read_back["events"][0]["type"] == "RequestArrived"


def test_key_frames_hold_the_first_the_last_and_the_rare() -> None:
    made = record()
    assert [f.step_id for f in made.key_frames(100)] == [0, 1, 2, 3, None]
    assert [f.step_id for f in made.key_frames(3)] == [0, 3, None]
    assert len(made.key_frames(1)) == 1
    assert block_record(HEADER, []).key_frames(5) == []
