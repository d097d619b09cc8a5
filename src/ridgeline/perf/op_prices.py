"""OpPrices: what the ops of a step took on one machine, measured on a synthetic model of a known shape.

The ops that work row by row are curves over their number of rows: tokens, or rows of logits. Attention, the
only op that depends on contexts, is a sum of terms (see `attention_work`), and so is the engine's own Python.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.step_shape import StepRow

TOKEN_OPS = ("embed", "qkv_proj", "o_proj", "gate_up_proj", "down_proj")
"""Curves over the tokens of a step."""
LOGITS_OPS = ("norms", "lm_head", "sample")
"""Curves over the rows of logits."""
TILE_POSITIONS = 32
TOKENS_PER_GROUP = 8
_RANGE_POSITIONS = 512
_TINY_POSITIONS = 256
_ITEMS_PER_THREAD = 4
_TOKEN_TILE = 8

Curve = Sequence[tuple[int, float]]
"""(rows, seconds) in rising order of rows; it begins with every number of rows up to 16."""


class AttentionWork(NamedTuple):
    """What one layer's attention does in a step.

    A call is one tile of 32 positions met by one group of up to 8 neighbouring tokens (csrc/ops/attention.h);
    `num_calls` is per KV head. Pairs are (token, position it sees), of tokens that are alone in their group
    and of others. `num_old_positions` had their K and V written before the step. `imbalance` ≥ 1: time of
    the busiest thread over the mean.
    """

    num_tokens: int
    num_calls: int
    num_single_pairs: int
    num_group_pairs: int
    num_old_positions: int
    imbalance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPrices:
    """Seconds of one layer with all threads at work.

    `layer_s` a layer; `token_s` per token and element of its queries; `call_s` per call and element of a
    position's keys; `single_pair_s`, `group_pair_s` per pair and element of a token's queries; `old_byte_s`
    per byte of K and V written before the step, where they come from memory.
    """

    layer_s: float
    token_s: float
    call_s: float
    single_pair_s: float
    group_pair_s: float
    old_byte_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadPrices:
    """What an engine step takes besides its ops: seconds a step, a request of it, a token of it."""

    step_s: float
    request_s: float
    token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPrices:
    """`curves` by op, for all layers of `model` together; `num_threads` threads.

    Those over tokens are of one request; `request_kv_write_s` is what `qkv_proj` takes more for each further
    one, whose K and V go to a block of their own.
    """

    model: ModelShape
    num_threads: int
    curves: Mapping[str, Curve]
    request_kv_write_s: float
    attention: AttentionPrices
    overhead: OverheadPrices


def curve_seconds(curve: Curve, num_rows: int) -> float:
    """Seconds of `num_rows` rows.

    Rows are computed in tiles of 8 that lie on multiples of 8, so seconds are a straight line through those
    only. What a part of a tile adds is taken from the rows 8 … 16, which are all there. Beyond the last point
    the last two points' line goes on.
    """
    if num_rows <= 0:
        return 0.0
    if num_rows <= 2 * _TOKEN_TILE:
        return _on_line(curve, num_rows)
    whole, part = num_rows - num_rows % _TOKEN_TILE, num_rows % _TOKEN_TILE
    seconds = _on_line(curve, whole)
    if part:
        share = _share_of_tile(curve, part)
        seconds += share * (_on_line(curve, whole + _TOKEN_TILE) - seconds)
    return seconds


def _share_of_tile(curve: Curve, part: int) -> float:
    """Which part of the step from 8 to 16 rows the first `part` rows of a tile take, 0…1."""
    first, last = _on_line(curve, _TOKEN_TILE), _on_line(curve, 2 * _TOKEN_TILE)
    if last <= first:
        return part / _TOKEN_TILE
    return min(max((_on_line(curve, _TOKEN_TILE + part) - first) / (last - first), 0.0), 1.0)


def _on_line(curve: Curve, num_rows: int) -> float:
    index = min(max(bisect_right(curve, (num_rows, float("inf"))), 1), len(curve) - 1)
    (left, left_s), (right, right_s) = curve[index - 1], curve[index]
    return left_s + (right_s - left_s) * (num_rows - left) / (right - left)


def attention_work(rows: Sequence[StepRow], num_kv_heads: int, num_threads: int) -> AttentionWork:
    """Count the calls of one layer, as the native attention makes them.

    A group of k tokens from position p on shares the ⌊(p + 1) / 32⌋ tiles that all of them see whole; of the
    tiles after these each token takes those it sees by itself.
    """
    num_tokens = num_calls = num_singles = num_pairs = num_old = num_groups = longest = 0
    for num_computed, num_scheduled, _ in rows:
        end = num_computed + num_scheduled
        num_tokens += num_scheduled
        num_old += num_computed
        longest = max(longest, end)
        if num_scheduled == 1:
            num_calls -= -end // TILE_POSITIONS
            num_singles += end
            num_groups += 1
            continue
        num_pairs += num_scheduled * num_computed + num_scheduled * (num_scheduled + 1) // 2
        for first in range(num_computed, end, TOKENS_PER_GROUP):
            size = min(TOKENS_PER_GROUP, end - first)
            shared, seen = divmod(first + 1, TILE_POSITIONS)
            num_calls += shared + size - (seen == 0) + max(seen + size - 1 - TILE_POSITIONS, 0)
            num_groups += 1
    imbalance = _imbalance(num_groups * num_kv_heads, longest, num_threads)
    return AttentionWork(num_tokens, num_calls, num_singles, num_pairs, num_old, imbalance)


def _imbalance(num_items: int, longest: int, num_threads: int) -> float:
    """Time of the busiest thread over the mean, for items of about one length."""
    if num_items * longest <= _TINY_POSITIONS:
        return float(num_threads)
    num_ranges = -(-longest // _RANGE_POSITIONS)
    if num_ranges > 1 and num_items < _ITEMS_PER_THREAD * num_threads:
        num_items *= num_ranges
    return -(-num_items // num_threads) * num_threads / num_items


def attention_terms(
    work: AttentionWork, model: ModelShape, *, from_memory: float
) -> tuple[float, float, float, float, float, float]:
    """What the prices of attention are multiplied with for one layer, in their order.

    `from_memory` is the share of the old K and V that no cache holds, 0…1.
    """
    old_bytes = 2 * model.kv_size * model.kv_itemsize * work.num_old_positions
    return (
        1.0,
        work.num_tokens * model.q_size,
        work.imbalance * work.num_calls * model.kv_size,
        work.imbalance * work.num_single_pairs * model.q_size,
        work.imbalance * work.num_group_pairs * model.q_size,
        from_memory * old_bytes,
    )
