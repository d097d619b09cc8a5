"""What the same step would be at other batches and contexts: the curves of the page, computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.explain.phases import ratio
from ridgeline.perf import crossover
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.op_bounds import MATRIX_OPS, OpBounds
from ridgeline.perf.op_costs import OpCosts, distinct_kv_bytes
from ridgeline.perf.predict import Predictor

_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_GROUPS: Mapping[str, Sequence[str]] = {
    "Q, K, V": ("q", "k", "v"),
    "attention output": ("o",),
    "FFN gate and up": ("gate", "up"),
    "FFN down": ("down",),
}


class Sweeps:
    """Curves for one model on one machine."""

    def __init__(self, model: ModelShape, profile: HardwareProfile) -> None:
        self._model = model
        self._costs = OpCosts(model)
        self._bounds = OpBounds(model, profile)
        self._predictor = Predictor(model, profile)

    def document(self, *, batch: int, context: int, max_context: int) -> dict[str, Any]:
        """Both sweeps around (batch, context), and the weights by type."""
        return {
            "batch": {
                "context": context,
                "ridge_batch": crossover.ridge_batch(self._bounds),
                "points": [self._point(each, context) for each in _BATCHES],
            },
            "context": {
                "batch": batch,
                "kv_context": crossover.kv_context(self._model, batch),
                "attention_context": crossover.attention_context(self._predictor, batch),
                "max_context": max_context,
                "points": [self._point(batch, each) for each in _contexts(self._model, batch, max_context)],
            },
            "weights": weights_by_type(self._model),
        }

    def _point(self, batch: int, context: int) -> dict[str, Any]:
        step = crossover.decode_step(batch, context)
        costs, terms = self._costs.of(step), self._bounds.terms(step)
        flops = sum(costs[op].flops for op in MATRIX_OPS)
        kv_bytes = distinct_kv_bytes(self._model, step.rows)
        weight_bytes = sum(cost.weight_bytes for cost in costs.values())
        return {
            "batch": batch,
            "context": context,
            "weight_bytes": weight_bytes,
            "kv_bytes": kv_bytes,
            "products_flops_per_byte": ratio(flops, sum(costs[op].weight_bytes for op in MATRIX_OPS)),
            "attention_flops_per_byte": ratio(costs["attention"].flops, kv_bytes),
            "products_compute_s": sum(terms[op][0] for op in MATRIX_OPS),
            "products_memory_s": sum(terms[op][1] for op in MATRIX_OPS),
            "predicted_s": self._predictor.predict(step).total_s,
        }


def weights_by_type(model: ModelShape) -> dict[str, dict[str, int]]:
    """Stored bytes that a decode step reads: group of matrices → quant type → bytes."""
    groups = {**_GROUPS, "head": ("token_embd" if model.is_tied else "lm_head",)}
    found: dict[str, dict[str, int]] = {}
    for group, names in groups.items():
        by_type = found.setdefault(group, {})
        for name in names:
            for quant_type, num_bytes in model.matrix_bytes_by_type(name).items():
                by_type[quant_type] = by_type.get(quant_type, 0) + num_bytes
    return found


def _contexts(model: ModelShape, batch: int, max_context: int) -> list[int]:
    """Powers of two, up to the longest, and past where K and V overtake the weights."""
    last = max(max_context, 2 * crossover.kv_context(model, batch))
    contexts = [16]
    while contexts[-1] < last:
        contexts.append(2 * contexts[-1])
    return contexts
