"""SchedulerConfig: the budgets of one step."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.config.checks import check_at_least, check_fraction, check_one_of
from ridgeline.errors import ConfigError

SCHEDULING_POLICIES = ("fcfs", "priority")


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Limits of one step, and who goes first.

    Raises:
        ConfigError: a limit is out of range.
    """

    max_num_seqs: int = 32
    """Most requests running at once."""
    max_num_batched_tokens: int = 512
    """Most tokens computed in one step."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one request in one step, and the length above which a prompt is long; 0 sets no
    such limit, and calls a prompt long that one step can't compute."""
    max_num_partial_prefills: int = 2
    """Most prompts that may be partly computed after a step; they share the step's tokens evenly."""
    max_long_partial_prefills: int = 1
    """Most of these that may be long; when reached, shorter prompts pass the long ones that wait."""
    scheduling_policy: str = "fcfs"
    """`fcfs`: first come, first served; `priority`: lower `priority` first, then first come."""
    priority_aging_s: float = 30.0
    """Seconds of waiting that count as one step of priority, so that nobody waits for ever."""
    watermark: float = 0.01
    """Share of the KV blocks that admission leaves free, besides one a running request to grow into."""

    def __post_init__(self) -> None:
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_num_partial_prefills",
            "max_long_partial_prefills",
        ):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        check_one_of("scheduling_policy", self.scheduling_policy, SCHEDULING_POLICIES)
        check_fraction("watermark", self.watermark)
        if not isinstance(self.priority_aging_s, int | float) or not self.priority_aging_s > 0:
            raise ConfigError("priority_aging_s", self.priority_aging_s, "must be a number of seconds > 0")
        if self.max_long_partial_prefills > self.max_num_partial_prefills:
            raise ConfigError(
                "max_long_partial_prefills",
                self.max_long_partial_prefills,
                f"must be ≤ max_num_partial_prefills ({self.max_num_partial_prefills})",
            )
