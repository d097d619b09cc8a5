"""Crossings, against the same terms worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.perf import crossover
from ridgeline.perf.op_bounds import OpBounds
from ridgeline.perf.predict import Predictor

FLAT = {"Q4_1": ((1, 4e9), (8, 4e9)), "Q8_0": ((1, 4e9), (8, 4e9))}
MACHINE = replace(PROFILE, matmul_flops_per_s=FLAT)


def bounds(**changes) -> OpBounds:
    return OpBounds(SHAPE, replace(MACHINE, **changes))


def test_the_ridge_is_where_bytes_and_flops_take_equally_long() -> None:
    each = bounds()
    compute_s, memory_s = each.matrix_terms(1)
    ridge = crossover.ridge_batch(each)
    # With one peak at every count, compute is a straight line and memory is level.
    assert ridge == pytest.approx(memory_s / compute_s, rel=1e-6)
    low, high = int(ridge), int(ridge) + 1
    assert each.matrix_terms(low)[0] < memory_s < each.matrix_terms(high)[0]


def test_the_ridge_moves_with_bandwidth_and_is_one_or_none_at_the_ends() -> None:
    once, twice = (crossover.ridge_batch(bounds(dram_bytes_per_s=rate)) for rate in (1e7, 2e7))
    assert once == pytest.approx(2 * twice, rel=1e-6)
    assert crossover.ridge_batch(bounds(dram_bytes_per_s=1e15)) == 1.0
    assert crossover.ridge_batch(bounds(dram_bytes_per_s=1.0)) is None


def test_prompts_are_compute_bound_from_the_first_whole_number_past_the_crossing() -> None:
    each = bounds(caches=())

    def excess(num_tokens: int) -> float:
        terms = each.terms(crossover.prefill_step(0, num_tokens))
        return sum(
            terms[op][0] - terms[op][1]
            for op in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head")
        )

    tokens = crossover.ridge_prompt_tokens(each)
    assert tokens > 1
    assert excess(tokens - 1) < 0 <= excess(tokens)


def test_kv_overtakes_the_weights_at_their_quotient() -> None:
    context = crossover.kv_context(SHAPE, 2)
    assert 2 * context * SHAPE.kv_shape.bytes_per_token == SHAPE.weights_bytes


def test_attention_overtakes_at_the_context_where_its_prediction_does() -> None:
    predictor = Predictor(SHAPE, MACHINE)

    def attention_leads(context: int) -> bool:
        op_s = predictor.predict(crossover.decode_step(1, context)).op_s
        rest_s = sum(s for op, s in op_s.items() if op not in ("attention", "step_overhead"))
        return op_s["attention"] >= rest_s

    context = crossover.attention_context(predictor, 1)
    assert attention_leads(context)
    assert not attention_leads(context - 1)


def test_a_share_is_reached_at_the_batch_that_the_fraction_gives() -> None:
    # 10 + 1 a sequence elsewhere, 1 each here: b / (10 + 2 b) = 1/4 at b = 5; 1/2 is never reached.
    assert crossover.saturation_batch(lambda batch: 10.0 + batch, each_s=1.0, share=0.25) == 5
    assert crossover.saturation_batch(lambda batch: 10.0 + batch, each_s=1.0, share=0.5) is None


def test_a_stalling_chunk_doubles_the_step() -> None:
    predictor = Predictor(SHAPE, MACHINE)
    alone_s = predictor.predict(crossover.decode_step(1, 64)).total_s
    tokens = crossover.stalling_chunk(predictor, 1, 64)

    def step_s(num_tokens: int) -> float:
        rows = [*crossover.decode_step(1, 64).rows, *crossover.prefill_step(0, num_tokens).rows]
        return predictor.predict(crossover.StepShape(rows)).total_s

    assert step_s(tokens) >= 2 * alone_s
    assert tokens == 1 or step_s(tokens - 1) < 2 * alone_s


def test_a_request_costs_its_prefill_and_its_share_of_the_decode_steps() -> None:
    predictor = Predictor(SHAPE, MACHINE)
    prefill_s = predictor.predict(crossover.prefill_step(0, 16)).total_s
    decode_s = predictor.predict(crossover.decode_step(4, 16 + 5)).total_s
    rate = crossover.requests_per_s(predictor, 4, num_prompt_tokens=16, num_output_tokens=11)
    assert rate == pytest.approx(1 / (prefill_s + 10 * decode_s / 4))
