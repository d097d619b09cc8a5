"""What-if answers worked out by hand on a machine of round numbers, and questions that make no sense."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.errors import ConfigError
from ridgeline.perf.crossover import decode_step, prefill_step
from ridgeline.perf.hardware import Source
from ridgeline.perf.hardware_table import find_hardware
from ridgeline.perf.named_models import find_named_model
from ridgeline.perf.op_bounds import MATRIX_OPS, OpBounds
from ridgeline.perf.predict import predict_step
from ridgeline.perf.quantities import milliseconds
from ridgeline.perf.step_shape import StepRow, StepShape
from ridgeline.perf.what_if import Term, WhatIf, what_if
from ridgeline.perf.what_if_changes import Scenario, parse_changes

# 1 GB/s, arithmetic 1,000 times as fast, no caches, 0.1 ms a step besides.
FAST = replace(
    PROFILE,
    matmul_flops_per_s={"Q4_1": ((1, 1e12),), "Q8_0": ((1, 1e12),)},
    attention_flops_per_s=1e12,
    caches=(),
    prices=None,
    overheads_s={"step": 1e-4},
)
KV_BYTES = 4 * 2 * 32 * 2  # layers × (K, V) × 2 heads of 16 × float16


def ask(*texts: str, step: StepShape | None = None, profile=FAST) -> WhatIf:
    return what_if(Scenario(SHAPE, profile, step or decode_step(1, 999)), parse_changes(texts))


def op(answer: WhatIf, name: str):
    (found,) = [each for each in answer.ops if each.op == name]
    return found


def test_heavier_weights_take_their_bytes_longer() -> None:
    answer = ask("weights=q8_0")
    qkv = op(answer, "qkv_proj")
    num_weights = 4 * (64 + 2 * 32) * 64
    assert qkv.before.seconds == pytest.approx(num_weights * 20 / 32 / 1e9)
    assert qkv.after.seconds == pytest.approx(num_weights * 34 / 32 / 1e9)
    assert answer.moved_term is Term.WEIGHTS
    assert answer.most_changed.op == "gate_up_proj"  # the largest matrices: 4 × 2 × 128 × 64
    assert answer.flipped == []
    assert op(answer, "lm_head").delta_s == 0  # it is Q8_0 already
    assert op(answer, "attention").delta_s == 0


def test_half_the_bytes_of_k_and_v_take_half_the_time() -> None:
    answer = ask("kv_dtype=int8")
    attention = op(answer, "attention")
    assert attention.before.seconds == pytest.approx(1000 * KV_BYTES / 1e9)
    assert attention.after.seconds == pytest.approx(500 * KV_BYTES / 1e9)
    assert answer.moved_term is Term.KV
    assert answer.most_changed.op == "attention"
    assert answer.after_s - answer.before_s == pytest.approx(-500 * KV_BYTES / 1e9)


def test_a_longer_context_reads_more_k_and_v_only() -> None:
    answer = ask("context=1999")
    assert op(answer, "attention").delta_s == pytest.approx(1000 * KV_BYTES / 1e9)
    assert all(each.delta_s == 0 for each in answer.ops if each.op != "attention")
    assert ask("context=2x").after.step == decode_step(1, 1998)


def test_a_batch_shares_the_weights() -> None:
    answer = ask("batch=8")
    assert answer.after.step == decode_step(8, 999)
    assert op(answer, "down_proj").delta_s == 0
    assert op(answer, "attention").after.seconds == pytest.approx(8000 * KV_BYTES / 1e9)
    assert answer.throughput_ratio == pytest.approx(8 * answer.before_s / answer.after_s)
    assert 1 < answer.throughput_ratio < 8


def test_a_batch_of_a_ragged_step_repeats_its_rows() -> None:
    rows = [StepRow(5, 1, 1), StepRow(0, 7, 1)]
    assert list(ask("batch=3", step=StepShape(rows)).after.step.rows) == [*rows, rows[0]]
    assert list(ask("batch=2x", step=StepShape(rows)).after.step.rows) == [*rows, *rows]


def test_twice_the_bandwidth_halves_what_memory_binds() -> None:
    answer = ask("bandwidth=2x")
    assert op(answer, "qkv_proj").after.seconds == pytest.approx(op(answer, "qkv_proj").before.seconds / 2)
    overhead = op(answer, "step_overhead")
    assert (overhead.before.seconds, overhead.after.seconds) == (1e-4, 1e-4)
    # All but the overhead is memory's: t' = (t − 0.1 ms) / 2 + 0.1 ms.
    assert answer.after_s == pytest.approx((answer.before_s - 1e-4) / 2 + 1e-4, rel=1e-6)
    assert ask("bandwidth=2GB/s").after_s == pytest.approx(answer.after_s)


def test_bandwidth_beyond_the_ridge_flips_the_bound() -> None:
    """Four-bit products have 2 / (20 / 32) = 3.2 FLOPs a byte: at 1e12 FLOP/s they turn at 312.5 GB/s."""
    below, above = ask("bandwidth=300x"), ask("bandwidth=400x")
    assert not op(below, "qkv_proj").has_flipped
    assert op(above, "qkv_proj").has_flipped
    assert op(above, "qkv_proj").after.bound == "compute"
    assert "flips memory → compute: qkv_proj, o_proj" in above.sentence
    assert op(above, "qkv_proj").after.term is Term.PRODUCTS


def test_what_flips_whole_is_told_with_both_of_its_sides() -> None:
    """At 10 FLOPs a byte products of one token are bound by their weights, those of eight by arithmetic."""
    slower = replace(FAST, matmul_flops_per_s={"Q4_1": ((1, 1e10),), "Q8_0": ((1, 1e10),)})
    more = ask("batch=8", step=decode_step(1, 0), profile=slower)
    assert more.moved_term is Term.PRODUCTS
    weights_ms, products_ms = more.term_s[Term.WEIGHTS], more.term_s[Term.PRODUCTS]
    assert weights_ms[1] == products_ms[0] == 0
    words = f"weights from memory, {milliseconds(weights_ms[0])} → arithmetic of the products, "
    assert f"what moves: {words}{milliseconds(products_ms[1])}" in more.sentence
    back = ask("batch=1", step=more.after.step, profile=slower)
    assert "arithmetic of the products, " in back.sentence.partition("what moves: ")[2].partition(" → ")[0]


def test_faster_arithmetic_helps_prefill_not_decode() -> None:
    slow = replace(FAST, matmul_flops_per_s={"Q4_1": ((1, 1e9),), "Q8_0": ((1, 1e9),)})
    prefill = ask("compute=2x", step=prefill_step(0, 64), profile=slow)
    assert prefill.moved_term is Term.PRODUCTS
    assert op(prefill, "qkv_proj").after.seconds == pytest.approx(op(prefill, "qkv_proj").before.seconds / 2)
    assert ask("compute=2x").after_s == ask("compute=2x").before_s


def test_changes_combine_in_any_order() -> None:
    together = ask("batch=4", "context=99", "bandwidth=2x")
    assert together.after.step == decode_step(4, 99)
    assert op(together, "attention").after.seconds == pytest.approx(400 * KV_BYTES / 2e9)
    assert ask("bandwidth=2x", "context=99", "batch=4").after_s == together.after_s


def test_priced_ops_keep_their_share_of_the_roofline() -> None:
    """down_proj is priced at 0.1 ms a token; where memory binds it, half the memory time is half of that."""
    priced = replace(PROFILE, matmul_flops_per_s={"Q4_1": ((1, 1e12),), "Q8_0": ((1, 1e12),)}, caches=())
    answer = ask("bandwidth=2x", profile=priced)
    assert op(answer, "down_proj").before.seconds == pytest.approx(1e-4)
    assert op(answer, "down_proj").after.seconds == pytest.approx(5e-5)
    predicted = predict_step(SHAPE, priced, decode_step(1, 999))
    assert answer.before_s == pytest.approx(predicted.total_s)
    assert not answer.is_least_time


def test_fewer_threads_scale_memory_as_measured_and_arithmetic_by_count() -> None:
    answer = ask("threads=1")
    assert op(answer, "qkv_proj").after.seconds == pytest.approx(op(answer, "qkv_proj").before.seconds / 0.7)
    assert answer.after.profile.matmul_flops_per_s["Q4_1"] == ((1, 5e11),)


def test_another_machine_is_compared_by_the_least_time_on_both_sides() -> None:
    model, step = find_named_model("llama-3-8b").shape(), decode_step(1, 100)
    h100 = find_hardware("h100").profile()
    answer = what_if(Scenario(model, PROFILE, step), parse_changes(["hardware=h100"]))
    assert answer.is_least_time
    assert answer.after_s == pytest.approx(sum(OpBounds(model, h100).of(step).values()))
    assert answer.before_s == pytest.approx(sum(OpBounds(model, PROFILE).of(step).values()))
    assert answer.after.profile.source is Source.DATA_SHEET
    assert "at best" in answer.sentence
    document = answer.document()
    assert document["hardware"]["source"] == "data sheet"
    assert not document["can_run_here"]
    faster = what_if(Scenario(model, PROFILE, step), parse_changes(["bandwidth=2x", "hardware=h100"]))
    assert faster.after_s == pytest.approx(answer.after_s / 2, rel=0.01)


def test_the_document_is_json_and_adds_up() -> None:
    document = ask("weights=q8_0", "batch=2").document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["can_run_here"]
    assert document["before_s"] == pytest.approx(sum(each["before_s"] for each in document["ops"]))
    assert document["after_s"] == pytest.approx(sum(term["after_s"] for term in document["terms"].values()))
    assert document["changes"] == ["weights=q8_0", "batch=2"]
    assert {each["op"] for each in document["ops"]} > set(MATRIX_OPS)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("batch", "what_if"),
        ("speed=2x", "what_if"),
        ("", "what_if"),
        ("batch=0", "batch"),
        ("batch=-1", "batch"),
        ("batch=²", "batch"),
        ("batch=99999999999", "batch"),
        ("context=many", "context"),
        ("kv_dtype=int3", "kv_dtype"),
        ("weights=q9_9", "weights"),
        ("weights=", "weights"),
        ("bandwidth=2", "bandwidth"),
        ("bandwidth=0x", "bandwidth"),
        ("bandwidth=nanx", "bandwidth"),
        ("bandwidth=infGB/s", "bandwidth"),
        ("compute=fast", "compute"),
        ("hardware=abacus", "hardware"),
        ("threads=0", "threads"),
    ],
)
def test_questions_that_make_no_sense_are_refused_by_name(text: str, field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_changes([text])
    assert refused.value.field == field


def test_a_question_is_asked_once() -> None:
    with pytest.raises(ConfigError, match="asked twice"):
        parse_changes(["batch=2", "batch=3"])


@pytest.mark.parametrize(
    ("texts", "field"),
    [
        (["threads=7"], "threads"),
        (["hardware=h100", "threads=2"], "threads"),
        (["weights=q4_k"], "weights"),
        (["batch=9999999x"], "batch"),
    ],
)
def test_what_does_not_fit_the_scenario_is_refused(texts: list[str], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ask(*texts)
    assert refused.value.field == field


@pytest.mark.parametrize("question", ["weights=q4_1", "kv_dtype=f16", "batch=1", "bandwidth=1x", "threads=2"])
def test_a_change_that_changes_nothing_says_so(question: str) -> None:
    shape = SHAPE.with_weights("Q4_1")
    answer = what_if(Scenario(shape, FAST, decode_step(1, 999)), parse_changes([question]))
    assert answer.after_s == pytest.approx(answer.before_s)
    assert answer.moved_term is None
    assert answer.document()["moved_term"] is None
    assert f"{question}: no term changes" in answer.sentence
    assert "moves" not in answer.sentence


def test_names_forgive_case_and_dashes() -> None:
    (change,) = parse_changes([" KV-dtype=INT8 "])
    assert (change.name, change.can_run) == ("kv_dtype", False)
    assert ask("weights=FP16").after.model.head_type == "F16"
