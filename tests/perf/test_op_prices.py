"""Curves between their points, and attention's calls counted as csrc/ops/attention.cpp makes them."""

from __future__ import annotations

import random

import pytest

from ridgeline.perf.op_prices import AttentionWork, attention_work, curve_seconds
from ridgeline.perf.step_shape import StepRow


def counted(rows: list[StepRow], num_kv_heads: int, num_threads: int) -> AttentionWork:
    """Walk groups, tiles and tokens one by one."""
    calls = singles = grouped = num_groups = 0
    for row in rows:
        end = row.num_computed_tokens + row.num_scheduled_tokens
        for first in range(row.num_computed_tokens, end, 8):
            group = range(first, min(first + 8, end))
            num_groups += 1
            position = 0
            while position < group[-1] + 1:
                if position + 32 <= group[0] + 1:
                    calls += 1
                else:
                    calls += sum(1 for token in group if token + 1 > position)
                position += 32
            pairs = sum(token + 1 for token in group)
            singles, grouped = (
                (singles + pairs, grouped) if row.num_scheduled_tokens == 1 else (singles, grouped + pairs)
            )
    tokens = sum(row.num_scheduled_tokens for row in rows)
    old = sum(row.num_computed_tokens for row in rows)
    longest = max(row.num_computed_tokens + row.num_scheduled_tokens for row in rows)
    items = num_groups * num_kv_heads
    if items * longest <= 256:
        return AttentionWork(tokens, calls, singles, grouped, old, float(num_threads))
    ranges = -(-longest // 512)
    if ranges > 1 and items < 4 * num_threads:
        items *= ranges
    return AttentionWork(tokens, calls, singles, grouped, old, -(-items // num_threads) * num_threads / items)


@pytest.mark.parametrize("seed", range(30))
def test_attention_is_counted_as_it_is_walked(seed: int) -> None:
    rng = random.Random(seed)
    rows = [
        StepRow(
            rng.choice([0, 5, 31, 32, 33, rng.randrange(2000)]),
            rng.choice([1, 1, 2, 8, 9, rng.randrange(1, 300)]),
            1,
        )
        for _ in range(rng.randrange(1, 9))
    ]
    num_kv_heads, num_threads = rng.choice([1, 3, 8]), rng.choice([1, 2, 5])
    assert attention_work(rows, num_kv_heads, num_threads) == counted(rows, num_kv_heads, num_threads)


STAIRS = (
    *((n, 10.0 if n <= 4 else 20.0 if n <= 8 else 30.0 if n <= 12 else 40.0) for n in range(1, 17)),
    (32, 80.0),
)


def test_a_curve_gives_its_points_and_the_lines_between() -> None:
    assert [curve_seconds(STAIRS, n) for n in (0, 1, 4, 5, 16, 24, 32)] == [0, 10, 10, 20, 40, 60, 80]


def test_a_part_of_a_tile_costs_what_it_costs_between_8_and_16() -> None:
    assert curve_seconds(STAIRS, 25) == curve_seconds(STAIRS, 28) == 70
    assert curve_seconds(STAIRS, 29) == 80


def test_beyond_its_points_a_curve_goes_on_as_it_ended() -> None:
    assert curve_seconds(STAIRS, 64) == 160
    rising = tuple((n, float(n)) for n in (*range(1, 17), 32))
    assert curve_seconds(rising, 1000) == pytest.approx(1000)
    assert curve_seconds(rising, 27) == pytest.approx(27)


def test_a_flat_curve_stays_flat() -> None:
    flat = tuple((n, 5.0) for n in (*range(1, 17), 64))
    assert curve_seconds(flat, 21) == 5.0
