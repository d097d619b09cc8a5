"""`ridgeline calibrate`: this machine's ceilings, and the prices of the engine's ops on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.bench.calibration_steps import LONG_STEPS, SHORT_STEPS
from ridgeline.bench.cpu_share import others_share, read_cpu
from ridgeline.bench.machine_ceilings import CeilingRounds, unsteady_note
from ridgeline.bench.measured_again import MAX_MEASUREMENTS, measured_again
from ridgeline.bench.op_price_fit import fit_prices
from ridgeline.bench.synthetic_model import BLOCK_SIZE, EngineStep, SyntheticModel
from ridgeline.config.machine import (
    cpu_caches,
    cpu_limits,
    cpu_name,
    memory_limits,
    throttled_periods,
    throttled_since,
)
from ridgeline.core.kv_cache_manager import num_blocks_for
from ridgeline.engine.machine_profile import store_profile, stored_profile
from ridgeline.formats.quants import QUANT_TYPES
from ridgeline.perf.beaten_ceilings import raised_by_work
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.model_shape import LAYER_MATRICES, ModelShape
from ridgeline.perf.step_shape import StepShape

Report = Callable[[str], None]

_MAX_OTHERS_CPU = 0.05
_LONG_TOKEN_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_SHORT_TOKEN_COUNTS = (1, 4, 8, 64, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPlan:
    """What to measure and for how long.

    Rounds go on while the next one is likely to end before `budget_s`; `engine_runs` are (requests, tokens of
    each prompt, steps) of a real engine.
    """

    budget_s: float
    max_rounds: int
    steps: Sequence[StepShape]
    engine_runs: Sequence[tuple[int, int, int]]
    token_counts: Sequence[int]
    num_passes: int
    has_all_formats: bool


LONG_PLAN = CalibrationPlan(
    budget_s=18.5,
    max_rounds=6,
    steps=LONG_STEPS,
    engine_runs=((1, 64, 8), (8, 16, 6), (32, 8, 4)),
    token_counts=_LONG_TOKEN_COUNTS,
    num_passes=5,
    has_all_formats=True,
)
SHORT_PLAN = CalibrationPlan(
    budget_s=2.6,
    max_rounds=2,
    steps=SHORT_STEPS,
    engine_runs=((1, 16, 6), (8, 4, 4)),
    token_counts=_SHORT_TOKEN_COUNTS,
    num_passes=3,
    has_all_formats=False,
)


def default_shape() -> ModelShape:
    """The shape that prices are measured on unless a model is named: that of SmolLM2-135M in Q4_1."""
    num_layers = 30
    types = {name: ("Q4_1",) * num_layers for name in LAYER_MATRICES}
    return ModelShape(
        name="smollm2-135m",
        num_layers=num_layers,
        hidden_size=576,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        ffn_size=1536,
        vocab_size=49152,
        rope_dim=64,
        matrix_types={**types, "token_embd": ("Q8_0",)},
        is_tied=True,
    )


def calibrate(
    shape: ModelShape, num_threads: int, plan: CalibrationPlan, *, report: Report = lambda _: None
) -> HardwareProfile:
    """Measure in rounds, everything once in each, so that a slow minute slows all of it alike.

    Ceilings are the best of the rounds, prices the median. `report` gets a line per round. The profile's
    notes name what limited or disturbed the measurement.
    """
    started_at_s = time.perf_counter()
    cpu_before, throttled_before = read_cpu(), throttled_periods()
    rounds = CeilingRounds(
        num_threads, cpu_caches(), _formats(shape, plan), plan.token_counts, plan.num_passes
    )
    samples: dict[StepShape, list[dict[str, float]]] = {step: [] for step in plan.steps}
    engine_steps: list[EngineStep] = []
    with SyntheticModel(shape, num_threads=num_threads, num_blocks=_num_blocks(plan)) as model:
        for number in range(plan.max_rounds):
            round_at_s = time.perf_counter()
            rounds.measure()
            for step in plan.steps:
                samples[step].append(model.run(step.rows))
            for num_requests, num_prompt_tokens, num_steps in plan.engine_runs:
                engine_steps += model.engine_steps(
                    num_requests, num_prompt_tokens=num_prompt_tokens, num_steps=num_steps
                )
            now_s = time.perf_counter()
            report(f"round {number + 1}: {now_s - round_at_s:.1f} s")
            if now_s - started_at_s + (now_s - round_at_s) > plan.budget_s:
                break
    notes = [
        *_limit_notes(num_threads),
        *_disturbance_notes(throttled_since(throttled_before), others_share(cpu_before, read_cpu())),
        *unsteady_note(rounds.samples, rounds.unsteady()),
    ]
    profile = replace(
        rounds.profile(cpu_name(), memory_limits().machine_bytes),
        prices=fit_prices(shape, num_threads, samples, engine_steps),
        notes=tuple(notes),
    )
    return _with_step_overhead(_raised_by(shape, profile, samples))


def keep(home: Path, profile: HardwareProfile) -> Path:
    """Store the profile with the time of day; returns the file."""
    return store_profile(home, profile, measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def stored_or_short(
    home: Path, num_threads: int, *, shape: ModelShape | None = None, report: Report = lambda _: None
) -> HardwareProfile:
    """The stored profile, where it is certain; else what the short calibration (≤ 3 s) finds, and it, as one.

    That is stored where it can be. A profile is measured again `MAX_MEASUREMENTS` - 1 times at most.
    """
    stored = stored_profile(home, num_threads)
    if stored is not None and (stored.is_stable or stored.num_measurements >= MAX_MEASUREMENTS):
        return stored
    if stored is None:
        report("measuring this machine for 3 s; `ridgeline calibrate` does it thoroughly")
    else:
        report("the machine was not steady when it was measured; measuring it again for 3 s")
    profile = calibrate(shape or default_shape(), num_threads, SHORT_PLAN)
    if stored is not None:
        profile = measured_again(stored, profile)
    keep_or_tell(home, profile, report)
    return profile


def keep_or_tell(home: Path, profile: HardwareProfile, report: Report) -> None:
    """Store the profile, or report why it can't be."""
    try:
        keep(home, profile)
    except OSError as error:
        report(f"the measurement can't be kept: {error.strerror}: {error.filename}")


def _formats(shape: ModelShape, plan: CalibrationPlan) -> list[str]:
    """Those of the model first."""
    own = list(dict.fromkeys(name for types in shape.matrix_types.values() for name in types))
    others = [name for name in QUANT_TYPES if name not in own] if plan.has_all_formats else []
    return own + others


def _num_blocks(plan: CalibrationPlan) -> int:
    ends = [[row.num_computed_tokens + row.num_scheduled_tokens for row in step.rows] for step in plan.steps]
    ends += [[prompt + steps] * requests for requests, prompt, steps in plan.engine_runs]
    return max(sum(num_blocks_for(end, BLOCK_SIZE) for end in each) for each in ends)


def _limit_notes(num_threads: int) -> list[str]:
    limits = cpu_limits()
    excess = limits.excess_note(num_threads)
    return [f"{num_threads} threads; {limits.reason}", *([excess] if excess else [])]


def _disturbance_notes(num_throttled: int, others_cpu: float) -> list[str]:
    notes = []
    if num_throttled:
        notes.append(
            f"the CPU quota stopped this process {num_throttled} times meanwhile: "
            "these are ceilings under throttling"
        )
    if others_cpu > _MAX_OTHERS_CPU:
        notes.append(f"other processes took {others_cpu:.0%} of the machine meanwhile")
    return notes


def _raised_by(
    shape: ModelShape, profile: HardwareProfile, samples: dict[StepShape, list[dict[str, float]]]
) -> HardwareProfile:
    work = [(step, op_seconds) for step, all_seconds in samples.items() for op_seconds in all_seconds]
    return raised_by_work(shape, profile, work)


def _with_step_overhead(profile: HardwareProfile) -> HardwareProfile:
    """A step of one request also among the plain overheads, for models without prices."""
    assert profile.prices is not None
    overhead = profile.prices.overhead
    step_s = overhead.step_s + overhead.request_s + overhead.token_s
    return replace(profile, overheads_s={**profile.overheads_s, "step": step_s})
