"""The time of a step before it runs: from measured prices of this machine, or from its ceilings alone.

With prices, an op of the calibrated shape takes what it took there; an op of another shape takes that times
the ratio of the two ops' lower bounds. Without prices (a data sheet) it takes the lower bound itself,
max(FLOPs / peak, bytes / bandwidth): Williams, Waterman & Patterson, Roofline (2009).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.op_bounds import OpBounds
from ridgeline.perf.op_cost import OPS
from ridgeline.perf.op_prices import (
    LOGITS_OPS,
    TOKEN_OPS,
    AttentionPrices,
    OpPrices,
    attention_terms,
    attention_work,
    curve_seconds,
)
from ridgeline.perf.step_shape import StepRow, StepShape

STEP_OVERHEAD = "step_overhead"
_MAX_REMEMBERED = 4096


class StepPrediction(NamedTuple):
    """`op_s`: seconds of each of `OPS` and of `step_overhead`, the engine's own; `total_s`: their sum."""

    op_s: dict[str, float]
    total_s: float


class Predictor:
    """Predictions for one model on one machine; what depends on row counts alone is remembered."""

    def __init__(self, model: ModelShape, profile: HardwareProfile) -> None:
        self._model = model
        self._profile = profile
        self._bounds = OpBounds(model, profile)
        prices = profile.prices
        self._prices = prices
        is_known = prices is None or _same_shape(model, prices.model)
        self._price_bounds = None if prices is None or is_known else OpBounds(prices.model, profile)
        self._kv_write_scale = 1.0 if prices is None else model.num_layers / prices.model.num_layers
        self._rows: dict[tuple[int, int], dict[str, float]] = {}
        self._kv_bytes = 2 * model.kv_size * model.kv_itemsize * model.num_layers

    def predict(self, step: StepShape) -> StepPrediction:
        """Seconds of a step by op."""
        if self._prices is None:
            op_s = self._bounds.of(step)
            op_s[STEP_OVERHEAD] = self._profile.overheads_s.get("step", 0.0)
        else:
            rows = step.rows
            op_s = self._row_ops(step.num_tokens, step.num_logits_rows).copy()
            op_s["attention"] = self._attention_s(rows, self._prices)
            op_s["qkv_proj"] += self._kv_write_scale * self._prices.request_kv_write_s * (len(rows) - 1)
            overhead = self._prices.overhead
            op_s[STEP_OVERHEAD] = (
                overhead.step_s + overhead.request_s * len(rows) + overhead.token_s * step.num_tokens
            )
        return StepPrediction(op_s, sum(op_s.values()))

    def bounds(self, step: StepShape) -> dict[str, float]:
        """The least seconds of each op that the machine's ceilings allow."""
        return self._bounds.of(step)

    def _row_ops(self, num_tokens: int, num_logits: int) -> dict[str, float]:
        """All ops in their order; attention still 0."""
        known = self._rows.get((num_tokens, num_logits))
        if known is None:
            if len(self._rows) >= _MAX_REMEMBERED:
                self._rows.clear()
            prices = self._prices
            assert prices is not None
            known = dict.fromkeys(OPS, 0.0)
            for op in TOKEN_OPS:
                known[op] = curve_seconds(prices.curves[op], num_tokens)
            for op in LOGITS_OPS:
                known[op] = curve_seconds(prices.curves[op], num_logits)
            if self._price_bounds is not None:
                known = self._scaled(known, num_tokens, num_logits)
            self._rows[num_tokens, num_logits] = known
        return known

    def _scaled(self, seconds: Mapping[str, float], num_tokens: int, num_logits: int) -> dict[str, float]:
        assert self._price_bounds is not None
        step = StepShape([StepRow(0, num_tokens, num_logits)])
        here, there = self._bounds.of(step), self._price_bounds.of(step)
        return {op: s * here[op] / there[op] if there[op] else s for op, s in seconds.items()}

    def _attention_s(self, rows: Sequence[StepRow], prices: OpPrices) -> float:
        model = self._model
        work = attention_work(rows, model.num_kv_heads, prices.num_threads)
        old_bytes = self._kv_bytes * work.num_old_positions
        is_cached = self._bounds.streamed_bytes + old_bytes <= self._bounds.last_cache_bytes
        terms = attention_terms(work, model, from_memory=0.0 if is_cached else 1.0)
        return model.num_layers * _priced(prices.attention, terms)


def predict_step(model: ModelShape, profile: HardwareProfile, step: StepShape) -> StepPrediction:
    """Seconds of one step by op; see `Predictor` for many steps of one model."""
    return Predictor(model, profile).predict(step)


def _priced(prices: AttentionPrices, terms: Sequence[float]) -> float:
    layer, tokens, calls, single_pairs, group_pairs, old_bytes = terms
    return (
        prices.layer_s * layer
        + prices.token_s * tokens
        + prices.call_s * calls
        + prices.single_pair_s * single_pairs
        + prices.group_pair_s * group_pairs
        + prices.old_byte_s * old_bytes
    )


def _same_shape(model: ModelShape, other: ModelShape) -> bool:
    """Whether two models differ in nothing that a time depends on."""
    return (
        model.matrix_types == other.matrix_types
        and (model.hidden_size, model.ffn_size, model.vocab_size, model.num_layers)
        == (other.hidden_size, other.ffn_size, other.vocab_size, other.num_layers)
        and (model.num_heads, model.num_kv_heads, model.head_dim)
        == (other.num_heads, other.num_kv_heads, other.head_dim)
    )
