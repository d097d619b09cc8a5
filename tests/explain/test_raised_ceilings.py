"""A run that goes faster than the ceilings allow raises them, once, and says which op did it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.explain.scripted_runs import STEP_S, run_record, step_record
from tests.perf.priced_machine import PROFILE

from ridgeline.bench.calibrate import default_shape
from ridgeline.explain.raised_ceilings import new_notes, raised_by_run
from ridgeline.explain.recorder import RunRecord
from ridgeline.perf.op_bounds import OpBounds
from ridgeline.perf.step_shape import StepRow, StepShape

SHAPE = default_shape()
MACHINE = replace(PROFILE, matmul_flops_per_s={"Q4_1": ((1, 1e12),), "Q8_0": ((1, 1e12),)}, caches=())
ROW = StepRow(64, 1, 1)


def run_that_takes(op_seconds: Mapping[str, float]) -> RunRecord:
    steps = [step_record(107 + STEP_S * index, [ROW]) for index in range(2)]
    return run_record([replace(step, op_seconds=op_seconds) for step in steps], num_prompt_tokens=64)


def test_weights_read_faster_than_memory_allows_raise_the_bandwidth() -> None:
    least_s = OpBounds(SHAPE, MACHINE).of(StepShape([ROW]))["lm_head"]
    after = raised_by_run(SHAPE, MACHINE, run_that_takes({"lm_head": least_s / 1.5}))
    assert after.dram_bytes_per_s == pytest.approx(1.5 * MACHINE.dram_bytes_per_s)
    assert new_notes(MACHINE, after) == ["dram raised by 50%: lm_head of a real step went faster"]
    again = raised_by_run(SHAPE, after, run_that_takes({"lm_head": least_s / 1.5}))
    assert again is after
    faster = raised_by_run(SHAPE, after, run_that_takes({"lm_head": least_s / 3}))
    assert [note for note in faster.notes if "dram" in note] == new_notes(after, faster)
    assert new_notes(after, faster) == ["dram raised by 100%: lm_head of a real step went faster"]


def test_a_run_within_its_ceilings_leaves_the_profile_alone() -> None:
    least_s = OpBounds(SHAPE, MACHINE).of(StepShape([ROW]))["lm_head"]
    assert raised_by_run(SHAPE, MACHINE, run_that_takes({"lm_head": least_s * 1.2})) is MACHINE
    assert raised_by_run(SHAPE, MACHINE, run_that_takes({"embed": 1e-9})) is MACHINE
