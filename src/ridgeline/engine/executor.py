"""Executor: whatever can compute a step."""

from __future__ import annotations

from typing import Protocol

from ridgeline.core.step import ModelRunnerOutput, SchedulerOutput


class Executor(Protocol):
    """Computes one step for all its requests together."""

    def execute(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the scheduled tokens and sample where all known tokens are computed."""
        ...

    def close(self) -> None:
        """Give back threads and memory; the executor can't be used afterwards."""
        ...
