"""Ceilings that the explained run itself has beaten: they were measured too low."""

from __future__ import annotations

from ridgeline.explain.recorder import RunRecord
from ridgeline.perf.beaten_ceilings import raised_by_work
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.model_shape import ModelShape


def raised_by_run(model: ModelShape, profile: HardwareProfile, run: RunRecord) -> HardwareProfile:
    """The profile with every ceiling raised that an op of the run beat; itself where none was."""
    return raised_by_work(model, profile, [(step.shape, step.op_seconds) for step in run.steps])


def new_notes(before: HardwareProfile, after: HardwareProfile) -> list[str]:
    """What `after` notes and `before` did not."""
    return [note for note in after.notes if note not in before.notes]
