"""From the seconds of calibration steps to `OpPrices`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ridgeline.bench.synthetic_model import EngineStep
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.op_prices import (
    LOGITS_OPS,
    TOKEN_OPS,
    AttentionPrices,
    Curve,
    OpPrices,
    OverheadPrices,
    attention_terms,
    attention_work,
    curve_seconds,
)
from ridgeline.perf.step_shape import StepShape

OpSamples = Mapping[StepShape, Sequence[Mapping[str, float]]]
"""Op seconds of every time a step was run."""


def fit_prices(
    model: ModelShape, num_threads: int, op_samples: OpSamples, engine_steps: Sequence[EngineStep]
) -> OpPrices:
    """Curves are medians of their steps' samples; the terms of attention and overhead are least squares."""
    medians = {
        step: {op: median(sample[op] for sample in samples) for op in samples[0]}
        for step, samples in op_samples.items()
    }
    curves = {op: _token_curve(op, medians) for op in TOKEN_OPS}
    curves |= {
        op: _curve([(s.num_logits_rows, times[op]) for s, times in medians.items() if s.num_logits_rows])
        for op in LOGITS_OPS
    }
    return OpPrices(
        model=model,
        num_threads=num_threads,
        curves=curves,
        request_kv_write_s=_request_kv_write_s(curves["qkv_proj"], medians),
        attention=_attention_prices(model, num_threads, medians),
        overhead=_overhead_prices(engine_steps),
    )


def _token_curve(op: str, medians: Mapping[StepShape, Mapping[str, float]]) -> Curve:
    """Of the steps with equally many tokens those with the fewest requests."""
    fewest: dict[int, int] = {}
    for step in medians:
        num_tokens, num_rows = step.num_tokens, len(step.rows)
        fewest[num_tokens] = min(fewest.get(num_tokens, num_rows), num_rows)
    return _curve(
        [(s.num_tokens, times[op]) for s, times in medians.items() if len(s.rows) == fewest[s.num_tokens]]
    )


def _request_kv_write_s(curve: Curve, medians: Mapping[StepShape, Mapping[str, float]]) -> float:
    """Median over the decode steps of several requests of what they take beyond the curve, per request."""
    extra = [
        (times["qkv_proj"] - curve_seconds(curve, step.num_tokens)) / (len(step.rows) - 1)
        for step, times in medians.items()
        if step.num_tokens == len(step.rows) > 4
    ]
    return max(median(extra), 0.0) if extra else 0.0


def _curve(points: Sequence[tuple[int, float]]) -> Curve:
    """Rising in rows, one point each (the median), never falling in seconds."""
    by_rows: dict[int, list[float]] = {}
    for rows, seconds in points:
        by_rows.setdefault(rows, []).append(seconds)
    curve: list[tuple[int, float]] = []
    for rows in sorted(by_rows):
        least = curve[-1][1] if curve else 0.0
        curve.append((rows, max(median(by_rows[rows]), least)))
    return tuple(curve)


def _attention_prices(
    model: ModelShape, num_threads: int, medians: Mapping[StepShape, Mapping[str, float]]
) -> AttentionPrices:
    terms, seconds = [], []
    for step, times in medians.items():
        work = attention_work(step.rows, model.num_kv_heads, num_threads)
        terms.append(attention_terms(work, model, from_memory=1.0))
        seconds.append(times["attention"] / model.num_layers)
    prices = nonnegative_least_squares(np.array(terms), np.array(seconds))
    layer, token, call, single_pair, group_pair, old_byte = prices
    return AttentionPrices(
        layer_s=layer,
        token_s=token,
        call_s=call,
        single_pair_s=single_pair,
        group_pair_s=group_pair,
        old_byte_s=old_byte,
    )


def _overhead_prices(steps: Sequence[EngineStep]) -> OverheadPrices:
    by_shape: dict[tuple[int, int], list[float]] = {}
    for step in steps:
        by_shape.setdefault((step.num_requests, step.num_tokens), []).append(step.wall_s - step.ops_s)
    terms = np.array([(1.0, requests, tokens) for requests, tokens in by_shape])
    seconds = np.array([max(median(values), 1e-9) for values in by_shape.values()])
    step_s, request_s, token_s = nonnegative_least_squares(terms, seconds)
    return OverheadPrices(step_s=step_s, request_s=request_s, token_s=token_s)


def nonnegative_least_squares(terms: NDArray[np.float64], seconds: NDArray[np.float64]) -> list[float]:
    """Prices ≥ 0 that make the relative errors of terms @ prices against seconds small.

    Least squares on rows divided by their seconds; a price that comes out negative is 0, and the others are
    found again without it.
    """
    rows = terms / seconds[:, None]
    scale = np.abs(rows).max(axis=0)
    scale[scale == 0] = 1.0
    used = list(range(terms.shape[1]))
    prices = np.zeros(terms.shape[1])
    while used:
        found, *_ = np.linalg.lstsq(rows[:, used] / scale[used], np.ones(len(rows)), rcond=None)
        if (found >= 0).all():
            prices[used] = found / scale[used]
            break
        used.pop(int(found.argmin()))
    return [float(price) for price in prices]
