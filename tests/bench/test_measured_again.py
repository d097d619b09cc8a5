"""A second measurement beside one that was not certain: what is kept of each, and when that is certain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.perf.priced_machine import PRICES, PROFILE

from ridgeline.bench.measured_again import measured_again
from ridgeline.perf.beaten_ceilings import BeatenCeiling, raised
from ridgeline.perf.hardware import CacheLevel, HardwareProfile
from ridgeline.perf.op_prices import OverheadPrices

OVERHEADS_S = {"barrier": 2e-6, "call": 1e-6, "step": 5e-4}


def measured(factor: float = 1.0, *, is_stable: bool = False, **changes: object) -> HardwareProfile:
    """The round machine, `factor` times as fast."""
    return replace(
        PROFILE,
        dram_bytes_per_s=1e9 * factor,
        dram_bytes_per_s_by_threads={1: 0.7e9 * factor, 2: 1e9 * factor},
        matmul_flops_per_s={"Q4_1": ((1, 1e9 * factor), (8, 4e9 * factor))},
        attention_flops_per_s=1e9 * factor,
        caches=(CacheLevel(name="L3", size_bytes=1024, read_bytes_per_s=1e10 * factor),),
        overheads_s=OVERHEADS_S,
        spread={"dram 2": (0.9e9 * factor, 1e9 * factor), "attention": (1e9 * factor, 1e9 * factor)},
        is_stable=is_stable,
        **changes,
    )


def test_every_ceiling_is_the_better_of_the_two() -> None:
    first = replace(
        measured(), matmul_flops_per_s={"Q4_1": ((1, 5e9), (2, 2e9)), "Q6_K": ((1, 7e9),)}, caches=()
    )
    both = measured_again(first, measured(2.0))
    assert both.dram_bytes_per_s == 2e9
    assert both.dram_bytes_per_s_by_threads == {1: 1.4e9, 2: 2e9}
    assert both.attention_flops_per_s == 2e9
    assert both.matmul_flops_per_s == {"Q4_1": ((1, 5e9), (2, 2e9), (8, 8e9)), "Q6_K": ((1, 7e9),)}
    assert [level.read_bytes_per_s for level in both.caches] == [2e10]
    assert both.spread == {"dram 2": (0.9e9, 2e9), "attention": (1e9, 2e9)}
    assert both.num_measurements == 2


def test_a_ceiling_that_work_has_raised_is_not_lowered_again() -> None:
    first = raised(measured(), [BeatenCeiling("dram", "lm_head", 1.5)])
    both = measured_again(first, measured(1.1))
    assert both.dram_bytes_per_s == 1.5e9
    assert both.dram_bytes_per_s_by_threads[2] == 1.5e9


def test_prices_are_those_of_the_faster_run() -> None:
    slow = replace(PRICES, overhead=OverheadPrices(step_s=1.0, request_s=0.0, token_s=0.0))
    busy = measured(prices=slow, notes=("busy",))
    busy = replace(busy, overheads_s={**OVERHEADS_S, "step": 1.0, "barrier": 1e-6})
    for both in (measured_again(busy, measured()), measured_again(measured(), busy)):
        assert both.prices == PRICES
        assert both.overheads_s == {"barrier": 1e-6, "call": 1e-6, "step": 5e-4}


@pytest.mark.parametrize(
    ("first", "second", "second_is_stable", "is_certain"),
    [
        (1.0, 1.1, False, True),  # two rounds of two minutes agree
        (1.0, 0.9, False, True),
        (1.0, 3.0, False, False),  # one of them is off, and nobody knows whether the second was the best
        (1.0, 3.0, True, True),  # the first was disturbed, the second steady by itself
        (3.0, 1.0, True, False),  # steady and slow: disturbed all along
        (3.0, 1.0, False, False),
    ],
)
def test_it_is_certain_when_the_second_reaches_the_first_again(
    first, second, second_is_stable, is_certain
) -> None:
    both = measured_again(measured(first), measured(second, is_stable=second_is_stable))
    assert both.is_stable == is_certain


def test_it_says_of_how_many_measurements_it_is_the_better() -> None:
    twice = measured_again(measured(), replace(measured(), notes=("2 threads",)))
    assert twice.notes == ("2 threads", "the better of 2 measurements")
    assert measured_again(twice, measured()).notes[-1] == "the better of 3 measurements"
