"""Where a step becomes the bottleneck: the crossings of the regime that ran."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.explain.scripted_runs import STEP_S, run_record, step_record
from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.config.engine import EngineLimits
from ridgeline.explain.bottlenecks import Bottleneck, Bottlenecks, Regime
from ridgeline.explain.path import PATH_STEPS, request_path
from ridgeline.perf import crossover
from ridgeline.perf.op_bounds import OpBounds
from ridgeline.perf.step_shape import StepRow

REGIME = Regime(
    num_requests=1,
    num_prompt_tokens=8,
    num_output_tokens=24,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    limits=EngineLimits(vocab_size=256, max_model_len=128, block_size=16, num_blocks=100),
)


def found(regime: Regime = REGIME) -> dict[str, list[Bottleneck]]:
    steps = [step_record(107, [StepRow(0, 8, 1)]), step_record(107 + STEP_S, [StepRow(8, 1, 1)])]
    path = request_path(run_record(steps))
    return {name: list(each) for name, each in Bottlenecks(SHAPE, PROFILE, regime).of(path).items()}


def test_every_step_but_the_rest_has_a_computed_crossing() -> None:
    each = found()
    assert set(each) == set(PATH_STEPS) - {"unaccounted"}
    assert all(each.values())
    assert all(one.text for many in each.values() for one in many)


def test_decode_names_the_ridge_of_this_machine() -> None:
    ridge, kv, _ = found()["decode"]
    assert ridge.at == crossover.ridge_batch(OpBounds(SHAPE, PROFILE))
    assert kv.at == crossover.kv_context(SHAPE, 1)
    assert "beyond the 128 of this engine" in kv.text


def test_more_requests_bring_the_context_limit_nearer() -> None:
    alone, eight = (found(replace(REGIME, num_requests=count))["decode"][1] for count in (1, 8))
    assert eight.at == pytest.approx(alone.at / 8)


def test_requests_wait_for_seats_or_for_blocks_whichever_is_fewer() -> None:
    seats = found()["queue"][0]
    assert (seats.at, "max_num_seqs" in seats.what) == (5, True)
    few = replace(REGIME, limits=replace(REGIME.limits, num_blocks=6))  # 32 tokens take 2 blocks of 16
    blocks = found(few)["queue"][0]
    assert (blocks.at, "KV blocks" in blocks.what) == (4, True)


def test_what_never_rules_says_how_near_it_comes() -> None:
    never = Bottleneck("batch", None, 4096, "making text takes 10 % of a decode step (3.1 % there)")
    assert never.text == "not up to a batch of 4,096: making text takes 10 % of a decode step (3.1 % there)"
    assert found()["sample"][0].at == 1  # 1 s of sampling beside steps of milliseconds
