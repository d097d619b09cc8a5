"""Real work that beats a ceiling raises it, once, with a note; work too short to measure does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.perf.priced_machine import PROFILE, SHAPE

from ridgeline.perf.beaten_ceilings import BeatenCeiling, beaten_ceilings, raised, raised_by_work
from ridgeline.perf.op_bounds import OpBounds
from ridgeline.perf.step_shape import StepRow, StepShape

STEP = StepShape((StepRow(500, 400, 1),))


def test_the_binding_ceiling_of_a_beaten_op_is_named() -> None:
    bounds = OpBounds(SHAPE, PROFILE)
    bound_s, name = bounds.with_ceilings(STEP)["down_proj"]
    assert name == "matmul Q4_1"
    assert beaten_ceilings(bounds, STEP, {"down_proj": bound_s / 1.5}) == [
        BeatenCeiling("matmul Q4_1", "down_proj", pytest.approx(1.5))
    ]
    assert beaten_ceilings(bounds, STEP, {"down_proj": bound_s / 1.01}) == []
    assert beaten_ceilings(bounds, STEP, {"down_proj": 1e-5, "embed": 1e-3}) == []


@pytest.mark.parametrize(
    ("ceiling", "rate"),
    [
        ("dram", lambda p: p.dram_bytes_per_s),
        ("dram", lambda p: p.dram_bytes_per_s_by_threads[2]),
        ("attention", lambda p: p.attention_flops_per_s),
        ("matmul Q8_0", lambda p: p.matmul_flops_per_s["Q8_0"][1][1]),
        ("L3", lambda p: p.caches[0].read_bytes_per_s),
    ],
)
def test_the_largest_factor_raises_a_ceiling_once_and_a_note_says_so(ceiling, rate) -> None:
    beaten = [BeatenCeiling(ceiling, "o_proj", 1.1), BeatenCeiling(ceiling, "down_proj", 1.3)]
    after = raised(PROFILE, beaten)
    assert rate(after) == pytest.approx(1.3 * rate(PROFILE))
    assert after.notes == ("a note", f"{ceiling} raised by 30%: down_proj of a real step went faster")
    assert replace(after, notes=PROFILE.notes) != PROFILE


def test_nothing_beaten_changes_nothing() -> None:
    assert raised(PROFILE, []) == PROFILE


def test_a_raised_ceiling_is_no_longer_beaten() -> None:
    seconds = {op: 0.8 * s for op, s in OpBounds(SHAPE, PROFILE).of(STEP).items()}
    after = raised(PROFILE, beaten_ceilings(OpBounds(SHAPE, PROFILE), STEP, seconds))
    assert beaten_ceilings(OpBounds(SHAPE, after), STEP, seconds) == []


def test_an_op_that_beats_both_its_sides_raises_both() -> None:
    """41 kB at 1 MB/s take 41 ms, 52 MFLOPs at 4 GFLOP/s take 13 ms: done in 1 ms, both were wrong."""
    slow = replace(PROFILE, dram_bytes_per_s=1e6, caches=())
    seconds = {"gate_up_proj": 1e-3}
    after = raised_by_work(SHAPE, slow, [(STEP, seconds)])
    assert after.dram_bytes_per_s == pytest.approx(41e6, rel=0.01)
    assert after.matmul_flops_per_s["Q4_1"][1][1] == pytest.approx(52.4e9, rel=0.03)
    assert beaten_ceilings(OpBounds(SHAPE, after), STEP, seconds) == []
    assert [note.partition(" raised")[0] for note in after.notes[1:]] == ["dram", "matmul Q4_1"]
    assert raised_by_work(SHAPE, after, [(STEP, seconds)]) is after
