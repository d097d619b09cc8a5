"""Calibration: the fit finds the prices that made its samples; a small machine is measured for real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.perf.priced_machine import PRICES, PROFILE, SHAPE

from ridgeline.bench import calibrate as calibration
from ridgeline.bench.calibrate import CalibrationPlan, calibrate, stored_or_short
from ridgeline.bench.calibration_steps import LONG_STEPS, SHORT_STEPS, decode_step, prefill_step
from ridgeline.bench.machine_ceilings import CeilingRounds, thread_counts, unsteady_note
from ridgeline.bench.op_price_fit import fit_prices, nonnegative_least_squares
from ridgeline.bench.synthetic_model import EngineStep, SyntheticModel, synthetic_bytes
from ridgeline.engine.machine_profile import hardware_key, stored_profile
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.hub.hardware_store import hardware_path
from ridgeline.kernels.dequantize import dequantize
from ridgeline.perf.hardware import Source
from ridgeline.perf.predict import STEP_OVERHEAD, Predictor
from ridgeline.perf.step_shape import StepRow, StepShape

TINY_PLAN = CalibrationPlan(
    budget_s=0.0,
    max_rounds=2,
    steps=(*(prefill_step(n) for n in range(1, 18)), decode_step(2, 40), decode_step(5, 600)),
    engine_runs=((1, 8, 3), (4, 4, 3)),
    token_counts=(1, 8),
    num_passes=2,
    has_all_formats=False,
)


@pytest.mark.parametrize("steps", [LONG_STEPS, SHORT_STEPS])
def test_the_fit_finds_the_prices_that_made_its_samples(steps) -> None:
    predictor = Predictor(SHAPE, PROFILE)
    samples = {step: [predictor.predict(step).op_s] * 3 for step in steps}
    engine_steps = [
        EngineStep(n, t, 1.0 + 1e-4 + 1e-5 * n + 1e-6 * t, 1.0)
        for n, t in ((1, 1), (1, 64), (8, 8), (8, 128), (32, 32))
    ]
    found = fit_prices(SHAPE, 2, samples, engine_steps)
    again = Predictor(SHAPE, replace(PROFILE, prices=found))
    for step in (
        decode_step(3, 700),
        decode_step(20, 55),
        prefill_step(9, 64),
        StepShape((StepRow(30, 1, 1), StepRow(0, 40, 1))),
    ):
        expected, predicted = predictor.predict(step).op_s, again.predict(step).op_s
        for op, seconds in expected.items():
            assert predicted[op] == pytest.approx(seconds, rel=0.06), (op, step)
    assert found.overhead.step_s == pytest.approx(1e-4, rel=1e-3)
    assert again.predict(decode_step(3, 700)).op_s[STEP_OVERHEAD] == pytest.approx(1.33e-4, rel=1e-3)


def test_prices_are_never_negative() -> None:
    terms = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert nonnegative_least_squares(terms, np.array([3.0, 5.0, 7.0])) == pytest.approx([1.0, 2.0])
    assert nonnegative_least_squares(terms, np.array([3.0, 2.0, 1.0]))[1] == 0.0


@pytest.mark.parametrize("name", QUANT_TYPES)
def test_made_up_weights_are_finite_and_varied(name: str) -> None:
    values = dequantize(QUANT_TYPES[name], synthetic_bytes(QUANT_TYPES[name], 4096), (4, 1024))
    assert np.isfinite(values).all()
    assert len(np.unique(values)) > 50
    assert np.abs(values[values != 0]).min() > 1e-6


def test_a_synthetic_model_runs_any_step_and_a_real_engine() -> None:
    with SyntheticModel(SHAPE, num_threads=2, num_blocks=40) as model:
        seconds = model.run([StepRow(100, 1, 1), StepRow(0, 30, 0)])
        assert set(seconds) == set(PRICES.curves) | {"attention"}
        assert all(value >= 0 for value in seconds.values())
        steps = model.engine_steps(3, num_prompt_tokens=5, num_steps=4)
    assert [(step.num_requests, step.num_tokens) for step in steps] == [(3, 15), (3, 3), (3, 3), (3, 3)]
    assert all(step.wall_s > step.ops_s > 0 for step in steps)


def test_a_machine_is_measured_stored_and_found(tmp_path: Path, monkeypatch) -> None:
    lines: list[str] = []
    profile = calibrate(SHAPE, 2, TINY_PLAN, report=lines.append)
    assert len(lines) == 1
    assert profile.source is Source.MEASURED
    assert set(profile.dram_bytes_per_s_by_threads) == {1, 2}
    assert list(profile.matmul_flops_per_s) == ["Q4_1", "Q8_0"]
    assert profile.prices is not None
    assert Predictor(SHAPE, profile).predict(decode_step(1, 10)).total_s > 0
    assert profile.notes[0].startswith("2 threads; ")
    assert stored_profile(tmp_path, 2) is None
    path = calibration.keep(tmp_path, profile)
    assert stored_profile(tmp_path, 2) == profile
    monkeypatch.setattr(calibration, "SHORT_PLAN", TINY_PLAN)
    monkeypatch.setattr(calibration, "measured_again", _never)
    calibration.keep(tmp_path, replace(profile, is_stable=True))
    assert stored_or_short(tmp_path, 2) == replace(profile, is_stable=True)
    text = path.read_text()
    path.write_text(text.replace('"caches"', '"cashes"'))
    assert stored_profile(tmp_path, 2) is None
    assert stored_or_short(tmp_path, 2, shape=SHAPE, report=lines.append).prices is not None
    assert "measuring this machine" in lines[-1]
    assert hardware_path(hardware_key(2), tmp_path).read_text() != text


def test_a_measurement_that_can_not_be_kept_is_used_all_the_same(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(calibration, "SHORT_PLAN", TINY_PLAN)
    home, lines = tmp_path / "file", list[str]()
    home.write_text("no folder")
    assert stored_or_short(home, 2, shape=SHAPE, report=lines.append).prices is not None
    assert "can't be kept" in lines[-1]


def test_what_disturbed_a_measurement_is_noted() -> None:
    assert calibration._disturbance_notes(2, 0.2) == [
        "the CPU quota stopped this process 2 times meanwhile: these are ceilings under throttling",
        "other processes took 20% of the machine meanwhile",
    ]
    assert calibration._disturbance_notes(0, 0.01) == []
    assert "more than the" in calibration._limit_notes(200)[1]


def test_throttling_during_a_calibration_marks_its_profile(monkeypatch) -> None:
    counts = iter([10, 13])
    monkeypatch.setattr(calibration, "throttled_periods", lambda: next(counts))
    monkeypatch.setattr(calibration, "throttled_since", lambda before: next(counts) - before)
    profile = calibrate(SHAPE, 1, TINY_PLAN)
    assert any("stopped this process 3 times" in note for note in profile.notes)


def test_unsteady_rounds_make_an_unstable_profile() -> None:
    rounds = CeilingRounds(1, [], ["Q4_1"], (1,), 1)
    rounds.measure()
    for _ in range(4):
        rounds.samples["dram 1"].append(max(rounds.samples["dram 1"]) / 2)
    assert "dram 1" in rounds.unsteady()
    profile = rounds.profile("x", 1)
    assert not profile.is_stable
    low, high = profile.spread["dram 1"]
    assert high == pytest.approx(2 * low)
    assert profile.dram_bytes_per_s == high


def test_one_round_alone_is_not_called_stable() -> None:
    rounds = CeilingRounds(1, [], ["Q4_1"], (1,), 1)
    rounds.samples = {"dram 1": [1e9], "attention": [1e9], "barrier": [1e-6], "call": [1e-6]}
    rounds.samples["matmul Q4_1 1"] = [1e9]
    assert not rounds.profile("x", 1).is_stable
    assert "one round only" in unsteady_note(rounds.samples, rounds.unsteady())[0]
    for values in rounds.samples.values():
        values.append(values[0])
    assert rounds.profile("x", 1).is_stable
    assert unsteady_note(rounds.samples, rounds.unsteady()) == []


def test_few_threads_are_all_measured_and_many_by_powers_of_two() -> None:
    assert thread_counts(1) == [1]
    assert thread_counts(3) == [1, 2, 3]
    assert thread_counts(48) == [1, 2, 4, 8, 16, 32, 48]
    assert thread_counts(64) == [1, 2, 4, 8, 16, 32, 64]


def _never(*_: object) -> None:
    raise AssertionError("it is certain already")


def test_an_uncertain_profile_is_measured_again_where_it_is_used_next(tmp_path: Path, monkeypatch) -> None:
    shorter, lines = list[int](), list[str]()
    monkeypatch.setattr(
        calibration, "calibrate", lambda shape, threads, plan: shorter.append(threads) or steady
    )
    steady = replace(PROFILE, is_stable=True, spread={"dram 2": (9e8, 1e9)})
    busy = replace(PROFILE, is_stable=False, dram_bytes_per_s=2e8, spread={"dram 2": (1e8, 2e8)})
    calibration.keep(tmp_path, busy)
    found = stored_or_short(tmp_path, 2, report=lines.append)
    assert shorter == [2]
    assert "not steady" in lines[0]
    assert found.is_stable
    assert (found.dram_bytes_per_s, found.num_measurements) == (1e9, 2)
    assert stored_profile(tmp_path, 2) == found
    assert stored_or_short(tmp_path, 2, report=lines.append) == found
    assert (shorter, len(lines)) == ([2], 1)


def test_a_machine_that_never_agrees_is_measured_three_times_and_stays_uncertain(
    tmp_path: Path, monkeypatch
) -> None:
    rates = iter([1e9, 5e8, 2e9, 1e9])

    def unsteady(shape: object, num_threads: int, plan: object) -> object:
        rate = next(rates)
        return replace(PROFILE, is_stable=False, dram_bytes_per_s=rate, spread={"dram 2": (rate, rate)})

    monkeypatch.setattr(calibration, "calibrate", unsteady)
    found = [stored_or_short(tmp_path, 2) for _ in range(5)]
    assert [each.num_measurements for each in found] == [1, 2, 3, 3, 3]
    assert not found[-1].is_stable
    assert next(rates) == 1e9
