"""A record of events as a document: frames, reads with their bytes, prefix-cache look-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline.core import events as ev
from ridgeline.metrics.block_happenings import Kind, miss_text
from ridgeline.metrics.block_map import BlockRead, Frame, block_frames
from ridgeline.metrics.event_trace import TraceHeader, event_document

_KEY_KINDS = (Kind.EVICTED, Kind.PREEMPTED, Kind.COPIED, Kind.MERGED, Kind.SHARED, Kind.HIT, Kind.FREED)


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """The events of a run and their fold."""

    header: TraceHeader
    events: Sequence[ev.Event]
    frames: Sequence[Frame]

    @property
    def started_at_s(self) -> float:
        """Instant of the first event."""
        return self.events[0].at_s if self.events else 0.0

    def read_bytes(self, reads: Sequence[BlockRead]) -> int:
        """K and V of the slots read, each once a request and step."""
        return sum(read.num_tokens for read in reads) * self.header.bytes_per_token

    def misses(self) -> list[dict[str, object]]:
        """Every prefix look-up's end: how many tokens were found, and why no more."""
        return [
            {
                "at_s": event.at_s,
                "request_id": event.request_id,
                "hit_tokens": event.num_hit_tokens,
                "reason": event.reason,
                "text": miss_text(event),
            }
            for event in self.events
            if isinstance(event, ev.PrefixMissed)
        ]

    def document(self) -> dict[str, object]:
        """The record as JSON has it."""
        header = self.header
        return {
            "model": header.model,
            "block_size": header.block_size,
            "num_blocks": header.num_blocks,
            "bytes_per_token": header.bytes_per_token,
            "bytes_per_token_formula": header.bytes_per_token_formula,
            "dropped_events": header.num_dropped_events,
            "steps": [self.frame_document(frame) for frame in self.frames],
            "prefix_lookups": self.misses(),
            "events": [event_document(event) for event in self.events],
        }

    def frame_document(self, frame: Frame) -> dict[str, object]:
        """One frame as JSON has it."""
        used, idle = frame.num_used_blocks, frame.num_idle_blocks
        return {
            "step_id": frame.step_id,
            "at_s": frame.at_s - self.started_at_s,
            "scheduled_tokens": frame.num_scheduled_tokens,
            "used_blocks": used,
            "idle_blocks": idle,
            "free_blocks": self.header.num_blocks - used - idle,
            "slack_tokens": frame.num_slack_slots(self.header.block_size),
            "read_bytes": self.read_bytes(frame.reads),
            "blocks": [
                {
                    "block_id": block.block_id,
                    "state": block.state,
                    "owners": list(block.owners),
                    "tokens": block.num_tokens,
                    "cached": block.is_cached,
                }
                for block in frame.blocks
            ],
            "reads": [self._read_document(read) for read in frame.reads],
            "happenings": [
                {"kind": each.kind, "request_id": each.request_id, "text": each.text}
                | {"block_ids": list(each.block_ids), "at_s": each.at_s - self.started_at_s}
                for each in frame.happenings
            ],
        }

    def key_frames(self, count: int) -> list[Frame]:
        """At most `count` frames that tell the most: first, last, fullest, then rare happenings."""
        if len(self.frames) <= count:
            return list(self.frames)
        fullest = max(range(len(self.frames)), key=lambda index: self.frames[index].num_used_blocks)
        order = [0, len(self.frames) - 1, fullest]
        for kind in _KEY_KINDS:
            has_kind = (i for i, f in enumerate(self.frames) if any(h.kind is kind for h in f.happenings))
            order += [next(has_kind, 0)]
        order += range(0, len(self.frames), max(len(self.frames) // max(count, 1), 1))
        chosen = sorted(list(dict.fromkeys(order))[: max(count, 1)])
        return [self.frames[index] for index in chosen]

    def _read_document(self, read: BlockRead) -> Mapping[str, object]:
        return {
            "block_id": read.block_id,
            "request_id": read.request_id,
            "rows": read.num_rows,
            "tokens": read.num_tokens,
            "bytes": read.num_tokens * self.header.bytes_per_token,
            "token_reads": read.num_token_reads,
            "bytes_without_reuse": read.num_token_reads * self.header.bytes_per_token,
        }


def block_record(header: TraceHeader, events: Sequence[ev.Event]) -> BlockRecord:
    """Fold `events` into frames."""
    return BlockRecord(header, events, list(block_frames(events, block_size=header.block_size)))
