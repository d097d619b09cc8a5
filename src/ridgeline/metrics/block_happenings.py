"""What happened to blocks and requests, each event in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ridgeline.core import events as ev


class Kind(StrEnum):
    """The kinds that a block map tells of."""

    ARRIVED = "arrived"
    SCHEDULED = "scheduled"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ALLOCATED = "allocated"
    FILLED = "filled"
    CACHED = "cached"
    HIT = "hit"
    MISSED = "missed"
    SHARED = "shared"
    COPIED = "copied"
    MERGED = "merged"
    EVICTED = "evicted"
    FREED = "freed"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class Happening:
    """One event: when, what, whose (None: nobody's), which blocks, and a line that says it all."""

    at_s: float
    kind: Kind
    request_id: str | None
    block_ids: tuple[int, ...]
    text: str


def happening_of(event: ev.Event) -> Happening | None:
    """The event in words; None for those that move no block and no request."""
    match event:
        case ev.BlocksAllocated():
            return _of_blocks(event, Kind.ALLOCATED, f"is given {_blocks(event.block_ids)}")
        case ev.BlocksFilled():
            return _of_blocks(event, Kind.FILLED, f"fills {_blocks(event.block_ids)}")
        case ev.BlocksCached():
            return _of_blocks(event, Kind.CACHED, f"makes {_blocks(event.block_ids)} findable")
        case ev.BlocksHit():
            held = f", {len(event.held_block_ids)} of them held by others" if event.held_block_ids else ""
            text = f"finds {event.num_tokens} cached tokens in {_blocks(event.block_ids)}{held}"
            return _of_blocks(event, Kind.HIT, text)
        case ev.BlocksShared():
            text = f"shares {_blocks(event.block_ids)} of request {event.source_request_id}"
            return _of_blocks(event, Kind.SHARED, f"{text}, {event.num_tokens} tokens")
        case ev.BlocksEvicted():
            return _of_blocks(event, Kind.EVICTED, f"takes {_blocks(event.block_ids)} from the prefix cache")
        case ev.BlocksFreed():
            return _of_blocks(event, Kind.FREED, f"frees {_blocks(event.block_ids)}")
        case ev.BlocksCopied():
            return _of_pairs(event, Kind.COPIED, "copies", event.copies)
        case ev.BlocksMerged():
            return _of_pairs(event, Kind.MERGED, "merges", event.merges)
        case _:
            return _of_request(event)


def miss_text(event: ev.PrefixMissed) -> str:
    """Why the lookup ended, in words."""
    if event.reason is ev.MissReason.DIFFERS:
        return f"differs at token {event.differs_at}"
    if event.reason is ev.MissReason.EVICTED and event.evicted_at_s is not None:
        return f"evicted {event.at_s - event.evicted_at_s:.3g} s ago"
    return _MISS_WORDS[event.reason]


_MISS_WORDS = {
    ev.MissReason.DIFFERS: "differs",
    ev.MissReason.EVICTED: "evicted",
    ev.MissReason.SALT: "salt differs",
    ev.MissReason.PARTIAL_BLOCK: "partial block",
    ev.MissReason.COLD: "never computed before",
}


def _of_request(event: ev.Event) -> Happening | None:
    match event:
        case ev.RequestArrived():
            kind, text = Kind.ARRIVED, f"arrives with {event.num_prompt_tokens} prompt tokens"
        case ev.RequestScheduled():
            kind, text = Kind.SCHEDULED, "runs again" if event.resumed else "runs"
            if event.num_cached_tokens:
                text += f", {event.num_cached_tokens} of its tokens are there already"
        case ev.RequestPreempted():
            by = "itself" if event.displaced_by == event.request_id else f"request {event.displaced_by}"
            kind = Kind.PREEMPTED
            text = f"is preempted by {by}, {event.num_computed_tokens} tokens to compute again"
        case ev.RequestFinished():
            kind = Kind.FINISHED
            text = f"ends after {event.num_output_tokens} tokens: {event.finish_reason}"
        case ev.PrefixMissed():
            kind = Kind.MISSED
            text = f"finds {event.num_hit_tokens} tokens in the prefix cache; then: {miss_text(event)}"
        case ev.PrefixCacheReset():
            return Happening(event.at_s, Kind.RESET, None, (), "the prefix cache is emptied")
        case _:
            return None
    return Happening(event.at_s, kind, event.request_id, (), f"request {event.request_id} {text}")


_BlockEvent = (
    ev.BlocksAllocated
    | ev.BlocksFilled
    | ev.BlocksCached
    | ev.BlocksHit
    | ev.BlocksShared
    | ev.BlocksEvicted
    | ev.BlocksFreed
)


def _of_blocks(event: _BlockEvent, kind: Kind, text: str) -> Happening:
    text = f"request {event.request_id} {text}"
    return Happening(event.at_s, kind, event.request_id, tuple(event.block_ids), text)


def _of_pairs(
    event: ev.BlocksCopied | ev.BlocksMerged, kind: Kind, verb: str, pairs: Sequence[tuple[int, int]]
) -> Happening:
    said = ", ".join(f"block {source} into {target}" for source, target in pairs)
    block_ids = tuple(target for _, target in pairs)
    text = f"request {event.request_id} {verb} {said}"
    return Happening(event.at_s, kind, event.request_id, block_ids, text)


def _blocks(block_ids: Sequence[int]) -> str:
    if len(block_ids) == 1:
        return f"block {block_ids[0]}"
    shown = ", ".join(map(str, block_ids[:8]))
    return f"{len(block_ids)} blocks ({shown}{', …' if len(block_ids) > 8 else ''})"
