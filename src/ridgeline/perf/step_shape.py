"""StepShape: the composition of one step, all that its costs depend on besides the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class StepRow(NamedTuple):
    """One request's share of a step.

    It computes positions [num_computed_tokens, num_computed_tokens + num_scheduled_tokens) and needs logits
    of `num_logits_rows` of them (1 where it samples; more with prompt logprobs; 0 in the middle of a prompt).
    """

    num_computed_tokens: int
    num_scheduled_tokens: int
    num_logits_rows: int


@dataclass(frozen=True, slots=True)
class StepShape:
    """Rows in the order they are laid out."""

    rows: Sequence[StepRow]

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return sum(row.num_scheduled_tokens for row in self.rows)

    @property
    def num_logits_rows(self) -> int:
        """Positions whose logits are computed."""
        return sum(row.num_logits_rows for row in self.rows)
