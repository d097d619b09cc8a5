"""The time of a step before it runs: from measured prices of this machine, or from its ceilings alone.

With prices, an op of the calibrated shape takes what it took there; an op of another shape takes that times
the ratio of the two ops' lower bounds, and so does attention that sees only a window, of what it would take
without one. Without prices (a data sheet) it takes the lower bound itself,
max(FLOPs / peak, bytes / bandwidth): Williams, Waterman & Patterson, Roofline (2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.op_bounds import OpBounds
from ridgeline.perf.op_cost import OPS
from ridgeline.perf.op_prices import (
    LOGITS_OPS,
    TOKEN_OPS,
    AttentionPrices,
    attention_terms,
    attention_work,
    curve_seconds,
)
from ridgeline.perf.step_shape import StepShape

STEP_OVERHEAD = "step_overhead"
_MAX_REMEMBERED = 4096


class StepPrediction(NamedTuple):
    """`op_s`: seconds of each of `OPS` and of `step_overhead`, the engine's own; `total_s`: their sum.

    `bound_op_s`: the least seconds of each of `OPS` that the machine's ceilings allow.
    """

    op_s: dict[str, float]
    total_s: float
    bound_op_s: dict[str, float]


class Predictor:
    """Predictions for one model on one machine; what depends on row counts alone is remembered."""

    def __init__(self, model: ModelShape, profile: HardwareProfile) -> None:
        self._model = model
        self._step_s = profile.overheads_s.get("step", 0.0)
        self._num_threads = profile.num_threads
        self._bounds = OpBounds(model, profile)
        prices = profile.prices
        self._prices = prices
        is_same = prices is None or _same_shape(model, prices.model)
        self._price_bounds = None if prices is None or is_same else OpBounds(prices.model, profile)
        self._kv_write_s = 0.0
        if prices is not None:
            self._kv_write_s = prices.request_kv_write_s * model.num_layers / prices.model.num_layers
        self._rows: dict[tuple[int, int, bool], tuple[dict[str, float], dict[str, float]]] = {}

    def predict(self, step: StepShape) -> StepPrediction:
        """Seconds of a step by op."""
        rows, model = step.rows, self._model
        work = attention_work(rows, model.num_kv_heads, self._num_threads)
        is_cached = self._bounds.is_cached(work.num_tokens + work.num_old_positions)
        known_s, known_bounds = self._row_ops(work.num_tokens, step.num_logits_rows, is_cached)
        op_s, bound_op_s = known_s.copy(), known_bounds.copy()
        whole_s = bound_op_s["attention"] = self._bounds.attention(work, is_cached=is_cached)
        if model.num_window_layers:
            bound_op_s["attention"] = self._bounds.of(step)["attention"]
        prices = self._prices
        if prices is None:
            op_s["attention"], op_s[STEP_OVERHEAD] = bound_op_s["attention"], self._step_s
        else:
            num_requests, overhead = len(rows), prices.overhead
            terms = attention_terms(work, model, from_memory=0.0 if is_cached else 1.0)
            op_s["attention"] = model.num_layers * _priced(prices.attention, terms)
            if model.num_window_layers and whole_s:
                op_s["attention"] *= bound_op_s["attention"] / whole_s
            op_s["qkv_proj"] += self._kv_write_s * (num_requests - 1)
            op_s[STEP_OVERHEAD] = (
                overhead.step_s + overhead.request_s * num_requests + overhead.token_s * work.num_tokens
            )
        return StepPrediction(op_s, sum(op_s.values()), bound_op_s)

    def _row_ops(
        self, num_tokens: int, num_logits: int, is_cached: bool
    ) -> tuple[dict[str, float], dict[str, float]]:
        """(predicted, least) seconds of all ops in their order; those of attention count for nothing."""
        key = num_tokens, num_logits, is_cached
        known = self._rows.get(key)
        if known is None:
            if len(self._rows) >= _MAX_REMEMBERED:
                self._rows.clear()
            bounds = self._bounds.row_ops(num_tokens, num_logits, is_cached=is_cached)
            known = self._rows[key] = self._price(num_tokens, num_logits, bounds), bounds
        return known

    def _price(self, num_tokens: int, num_logits: int, bounds: dict[str, float]) -> dict[str, float]:
        prices = self._prices
        if prices is None:
            return bounds
        seconds = dict.fromkeys(OPS, 0.0)
        for op in TOKEN_OPS:
            seconds[op] = curve_seconds(prices.curves[op], num_tokens)
        for op in LOGITS_OPS:
            seconds[op] = curve_seconds(prices.curves[op], num_logits)
        if self._price_bounds is None:
            return seconds
        is_cached = self._price_bounds.is_cached(num_tokens)
        priced = self._price_bounds.row_ops(num_tokens, num_logits, is_cached=is_cached)
        return {op: s * bounds[op] / priced[op] if priced[op] else s for op, s in seconds.items()}


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
