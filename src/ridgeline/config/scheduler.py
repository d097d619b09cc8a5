"""SchedulerConfig: the budgets of one step."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.config.checks import check_at_least


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Limits of one step.

    Raises:
        ConfigError: a limit is below 1.
    """

    max_num_seqs: int = 32
    """Most requests running at once."""
    max_num_batched_tokens: int = 512
    """Most tokens computed in one step."""

    def __post_init__(self) -> None:
        check_at_least("max_num_seqs", self.max_num_seqs, 1)
        check_at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
