"""Occupancy: how the KV cache's blocks are used at one moment, and counts since the start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks by state, and what the prefix cache did.

    `num_used_blocks + num_idle_blocks + num_free_blocks = num_blocks`: used are held by a request, idle
    by nobody but findable, free hold nothing. `num_slack_slots` counts the slots of used blocks that hold
    no computed token. `num_queried_tokens`, `num_hit_tokens`: tokens of admitted requests and those of
    them that were found; second look-ups after a preemption are left out.
    """

    num_blocks: int
    num_used_blocks: int
    num_idle_blocks: int
    num_free_blocks: int
    num_slack_slots: int
    num_queried_tokens: int
    num_hit_tokens: int
    num_evicted_blocks: int

    @property
    def hit_rate(self) -> float | None:
        """Found tokens of those asked for, 0…1; None before the first request."""
        return self.num_hit_tokens / self.num_queried_tokens if self.num_queried_tokens else None
