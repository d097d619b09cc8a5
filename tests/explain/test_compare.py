"""Two explanations: the factors' product is the ratio of seconds, and the cause is what was changed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.explain.scripted_runs import STEP_S, run_record, step_record
from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.errors import ConfigError
from ridgeline.explain.compare import check_explanation, comparison
from ridgeline.explain.path import request_path
from ridgeline.explain.phases import StepAccountant
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.step_shape import StepRow


def explained(
    num_requests: int = 1, *, profile: HardwareProfile = PROFILE, num_steps: int = 2, slower: float = 1
) -> dict:
    """A document with the parts a comparison takes, of scripted steps."""
    rows = [[StepRow(0, 8, 1)] * num_requests]
    rows += [[StepRow(8 + index, 1, 1)] * num_requests for index in range(num_steps)]
    ids = [f"q{index}" for index in range(num_requests - 1)] + ["r"]
    steps = [step_record(107 + STEP_S * i, each, request_ids=ids) for i, each in enumerate(rows)]
    steps = [
        replace(step, op_seconds={op: seconds * slower for op, seconds in step.op_seconds.items()})
        for step in steps
    ]
    run = run_record(steps)
    phases = StepAccountant(SHAPE, profile).phases(run)
    return {
        "model": {"name": "small"},
        "hardware": {"cpu": profile.name, "threads": profile.num_threads},
        "regime": {"batch": num_requests},
        "request": {"prompt_tokens": 8, "completion_tokens": num_steps + 1, "e2e_s": run.wall_s},
        "path": [{"step": s.step, "seconds": s.seconds} for s in request_path(run).values()],
        "phases": {name: phase.document() for name, phase in phases.items()},
        "ops": [op for phase in phases.values() for op in phase.op_documents()],
    }


def op_of(made: dict, phase: str, op: str) -> dict:
    (found,) = [each for each in made["ops"] if (each["phase"], each["op"]) == (phase, op)]
    return found


def test_the_factors_multiply_to_the_ratio() -> None:
    for other in (explained(8), explained(num_steps=5), explained(slower=1.3)):
        made = comparison(explained(), other)
        for row in [*made["phases"], *made["ops"]]:
            if row["ratio"] is not None:
                assert math.prod(row["factors"].values()) == pytest.approx(row["ratio"], rel=1e-9), row


def test_equal_runs_differ_in_nothing() -> None:
    made = comparison(explained(), explained())
    assert all(row["ratio"] == 1 for row in made["path"] if row["ratio"] is not None)
    assert all(value == pytest.approx(1) for row in made["ops"] for value in row["factors"].values())


def test_more_steps_are_named() -> None:
    assert (
        op_of(comparison(explained(), explained(num_steps=6)), "decode", "gate_up_proj")["cause"] == "steps"
    )


def test_a_slower_run_of_the_same_work_is_farther_from_its_roofline() -> None:
    row = op_of(comparison(explained(), explained(slower=1.5)), "decode", "gate_up_proj")
    assert row["cause"] == "distance from the roofline"
    assert row["factors"][row["cause"]] == pytest.approx(1.5)


def test_another_machine_is_its_ceiling() -> None:
    faster = replace(
        PROFILE,
        matmul_flops_per_s={
            k: tuple((n, 9 * r) for n, r in v) for k, v in PROFILE.matmul_flops_per_s.items()
        },
    )
    row = op_of(comparison(explained(8), explained(8, profile=faster)), "prefill", "gate_up_proj")
    assert row["factors"]["ceiling"] == pytest.approx(1 / 9)


def test_a_bound_that_flips_is_named_with_both_ends() -> None:
    slow_memory = replace(PROFILE, dram_bytes_per_s=1e6)
    row = op_of(comparison(explained(profile=slow_memory), explained(8)), "decode", "gate_up_proj")
    assert row["bound"] == ["memory", "compute"]
    assert "bound: memory → compute" in row["factors"]


def test_another_json_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="no explanation"):
        check_explanation("compare", "a.json", {"model": {}})
    with pytest.raises(ConfigError, match="no explanation"):
        check_explanation("compare", "a.json", [])
    assert check_explanation("compare", "a.json", explained())["model"] == {"name": "small"}
