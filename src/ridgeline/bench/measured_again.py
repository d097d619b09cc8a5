"""Two measurements of one machine as one profile: the second was made because the first was not certain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ridgeline.bench.calibration_steps import decode_step
from ridgeline.bench.machine_ceilings import MAX_SPREAD
from ridgeline.perf.hardware import CacheLevel, HardwareProfile
from ridgeline.perf.predict import Predictor

MAX_MEASUREMENTS = 3
"""After so many that don't agree the machine is unsteady by nature: measuring it again tells nothing."""
_DURATIONS = ("barrier", "call")
_REFERENCE_STEPS = (decode_step(1, 300), decode_step(8, 400))

Curve = Sequence[tuple[int, float]]


def measured_again(before: HardwareProfile, after: HardwareProfile) -> HardwareProfile:
    """Each ceiling the better of the two, so that one which real work has raised is never lowered; the prices
    of whichever ran the engine's steps faster.

    It is certain where the second measurement reaches all ceilings of the first again, and either was steady
    by itself or found no ceiling much higher.
    """
    quicker, slower = sorted((after, before), key=_reference_s)
    both = {
        name: _widest(before.spread.get(name), after.spread.get(name))
        for name in {**before.spread, **after.spread}
    }
    return replace(
        quicker,
        num_measurements=before.num_measurements + 1,
        dram_bytes_per_s=max(before.dram_bytes_per_s, after.dram_bytes_per_s),
        dram_bytes_per_s_by_threads=_best(
            before.dram_bytes_per_s_by_threads, after.dram_bytes_per_s_by_threads
        ),
        matmul_flops_per_s=_best_curves(before.matmul_flops_per_s, after.matmul_flops_per_s),
        attention_flops_per_s=max(before.attention_flops_per_s, after.attention_flops_per_s),
        caches=_best_caches(before.caches, after.caches),
        overheads_s=_overheads_s(quicker, slower),
        spread=both,
        is_stable=_agree(before, after),
        notes=(*after.notes, f"the better of {before.num_measurements + 1} measurements"),
    )


def _overheads_s(quicker: HardwareProfile, slower: HardwareProfile) -> dict[str, float]:
    """The least of each duration; `step` belongs to the prices."""
    durations = {**slower.overheads_s, **quicker.overheads_s}
    for name in _DURATIONS:
        known = [p.overheads_s[name] for p in (quicker, slower) if name in p.overheads_s]
        if known:
            durations[name] = min(known)
    return durations


def _reference_s(profile: HardwareProfile) -> float:
    assert profile.prices is not None
    predictor = Predictor(profile.prices.model, profile)
    return sum(predictor.predict(step).total_s for step in _REFERENCE_STEPS)


def _agree(before: HardwareProfile, after: HardwareProfile) -> bool:
    pairs = [
        (before.spread[name][1], after.spread[name][1])
        for name in {*before.spread} & {*after.spread}
        if name not in _DURATIONS
    ]
    reaches = all(first <= MAX_SPREAD * second for first, second in pairs)
    return reaches and (after.is_stable or all(second <= MAX_SPREAD * first for first, second in pairs))


def _widest(first: tuple[float, float] | None, second: tuple[float, float] | None) -> tuple[float, float]:
    ranges = [each for each in (first, second) if each is not None]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _best(first: Mapping[int, float], second: Mapping[int, float]) -> dict[int, float]:
    keys = sorted({**first, **second})
    return {key: max(each[key] for each in (first, second) if key in each) for key in keys}


def _best_curves(first: Mapping[str, Curve], second: Mapping[str, Curve]) -> dict[str, Curve]:
    names = list(dict.fromkeys([*first, *second]))
    return {
        name: tuple(_best(dict(first.get(name, ())), dict(second.get(name, ()))).items()) for name in names
    }


def _best_caches(first: Sequence[CacheLevel], second: Sequence[CacheLevel]) -> tuple[CacheLevel, ...]:
    by_name: dict[str, CacheLevel] = {}
    for level in (*first, *second):
        known = by_name.get(level.name)
        if known is None or level.read_bytes_per_s > known.read_bytes_per_s:
            by_name[level.name] = level
    return tuple(by_name.values())
