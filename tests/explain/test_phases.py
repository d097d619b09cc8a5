"""Prefill and decode: whose tokens, whose seconds, which bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.explain.scripted_runs import STEP_S, run_record, step_record
from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.bench.calibrate import default_shape
from ridgeline.explain.phases import STEP_OPS, StepAccountant
from ridgeline.perf.hardware import CacheLevel, HardwareProfile
from ridgeline.perf.op_cost import OPS
from ridgeline.perf.op_costs import step_costs, total_cost
from ridgeline.perf.step_shape import StepRow, StepShape

SERVER = replace(
    PROFILE,
    dram_bytes_per_s=18e9,
    matmul_flops_per_s={"Q4_1": ((1, 166e9), (8, 285e9)), "Q8_0": ((1, 108e9), (8, 190e9))},
    attention_flops_per_s=64e9,
    caches=(CacheLevel(name="L3", size_bytes=32 * 2**20, read_bytes_per_s=37e9),),
    overheads_s={"barrier": 4e-7},
    prices=None,
)


def bound_of(row: StepRow, profile: HardwareProfile = SERVER, ops: Sequence[str] = OPS) -> str:
    accountant = StepAccountant(default_shape(), profile)
    return accountant.total([step_record(0, [row])], ops).bound


def test_one_decode_is_memory_bound_and_a_long_prefill_compute_bound() -> None:
    assert bound_of(StepRow(64, 1, 1)) == "memory"
    assert bound_of(StepRow(0, 512, 1)) == "compute"


def test_slow_barriers_or_an_engine_slower_than_its_kernels_are_overhead() -> None:
    assert bound_of(StepRow(64, 1, 1), replace(SERVER, overheads_s={"barrier": 1.0})) == "overhead"
    # The hand-made step spends 5 s outside kernels whose least time is milliseconds.
    assert bound_of(StepRow(64, 1, 1), ops=STEP_OPS) == "overhead"


def test_op_times_add_up_to_the_step_and_costs_to_op_costs() -> None:
    step = step_record(0, [StepRow(0, 8, 1)])
    totals = StepAccountant(SHAPE, PROFILE).op_totals(step)
    assert sum(each.seconds for each in totals.values()) == pytest.approx(step.seconds) == 14.0
    assert totals["step_overhead"].seconds == 14.0 - 9.0
    assert {op: totals[op].cost for op in OPS} == step_costs(SHAPE, step.shape)


def test_a_step_with_a_prompt_in_it_is_prefill_and_says_what_decoded_beside() -> None:
    both = step_record(0, [StepRow(0, 8, 1), StepRow(8, 1, 1)], request_ids=["r", "s"])
    alone = step_record(STEP_S, [StepRow(8, 1, 1), StepRow(9, 1, 1)], request_ids=["r", "s"])
    phases = StepAccountant(SHAPE, PROFILE).phases(run_record([both, alone]))
    prefill, decode = phases["prefill"].document(), phases["decode"].document()
    assert (prefill["tokens"], prefill["decode_tokens_beside"], prefill["steps"]) == (8, 1, 1)
    assert (decode["tokens"], decode["decode_tokens_beside"], decode["steps"]) == (2, 0, 1)
    assert prefill["flops"] == total_cost(step_costs(SHAPE, both.shape)).flops
    assert prefill["seconds"] + decode["seconds"] == 28.0
    assert prefill["kernel_share"] == 9 / 14
    assert prefill["op_share"] == 1
    assert prefill["step_overhead_parts"] == {
        "schedule": 1, "forecast": 0.25, "arrays": 0.25, "calls": 0.5, "commit": 3,
    }  # fmt: skip


def test_dram_bytes_count_a_position_once_and_bytes_count_every_read() -> None:
    shape = StepShape([StepRow(0, 32, 1)])
    totals = StepAccountant(SHAPE, PROFILE).op_totals(step_record(0, shape.rows))["attention"]
    assert totals.dram_bytes == 32 * SHAPE.kv_shape.bytes_per_token
    assert totals.cost.kv_read_bytes > totals.dram_bytes


def test_a_prediction_missing_once_is_missing_in_the_sum() -> None:
    steps = [step_record(0, [StepRow(0, 8, 1)]), step_record(STEP_S, [StepRow(8, 1, 1)])]
    steps[1] = replace(steps[1], prediction=None)
    phases = StepAccountant(SHAPE, PROFILE).phases(run_record(steps))
    assert phases["prefill"].document()["predicted_s"] == pytest.approx(steps[0].prediction.total_s)
    assert phases["decode"].document()["predicted_s"] is None
