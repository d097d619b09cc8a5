"""The least time an op can take on a machine: its roofline."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.model_shape import OP_MATRICES, ModelShape
from ridgeline.perf.op_cost import OpCost
from ridgeline.perf.op_costs import SOFTMAX_FLOPS, OpCosts, distinct_kv_bytes, spilled_bytes
from ridgeline.perf.op_prices import AttentionWork
from ridgeline.perf.step_shape import StepRow, StepShape

MATRIX_OPS = (*OP_MATRICES, "lm_head")


class OpBounds:
    """max(FLOPs / peak, bytes / bandwidth) of each op of any step of one model.

    Bytes are those that must come from outside the caches: weights and distinct K and V from memory, or from
    the last cache where all of them fit it. Activations stay in the caches and count at its bandwidth, but
    for what one pass makes beyond the last cache's size (see `spilled_bytes`), which counts as memory's.
    """

    def __init__(self, model: ModelShape, profile: HardwareProfile) -> None:
        self._model = model
        self._profile = profile
        self.costs = OpCosts(model)
        self._formats = {op: model.op_format(op) for op in MATRIX_OPS}
        last = max(profile.caches, key=lambda cache: cache.size_bytes, default=None)
        self.last_cache_bytes = last.size_bytes if last else 0
        self._cache_name = last.name if last else "dram"
        self._cache_bytes_per_s = last.read_bytes_per_s if last else profile.dram_bytes_per_s
        self.streamed_bytes = model.weights_bytes
        self._position_bytes = 2 * model.kv_size * model.kv_itemsize * model.num_layers

    def of(self, step: StepShape) -> dict[str, float]:
        """Seconds by op, all layers together."""
        return {op: bound_s for op, (bound_s, _) in self.with_ceilings(step).items()}

    def with_ceilings(self, step: StepShape) -> dict[str, tuple[float, str]]:
        """Seconds by op, and the ceiling that sets them: `dram`, a cache, `attention` or `matmul Q4_1`."""
        costs = self.costs.of(step)
        kv_bytes = distinct_kv_bytes(self._model, step.rows)
        is_cached = self.streamed_bytes + kv_bytes <= self.last_cache_bytes
        bounds = self._row_bounds(costs, step.num_tokens, step.num_logits_rows, is_cached=is_cached)
        bounds["attention"] = self._attention(costs["attention"].flops, kv_bytes, is_cached=is_cached)
        return bounds

    def terms(self, step: StepShape) -> dict[str, tuple[float, float]]:
        """(compute, memory) seconds of each op; the larger is its bound.

        An op that is no product has no compute term but attention; its memory term counts caches too.
        """
        costs = self.costs.of(step)
        kv_bytes = distinct_kv_bytes(self._model, step.rows)
        is_cached = self.streamed_bytes + kv_bytes <= self.last_cache_bytes
        terms = {}
        for op, cost in costs.items():
            memory_s = self._memory(self._streamed(op, cost), is_cached=is_cached)[0]
            compute_s = 0.0
            if op in self._formats:
                num_rows = step.num_logits_rows if op == "lm_head" else step.num_tokens
                compute_s = cost.flops / self._peak(self._formats[op], num_rows)[0]
            elif op == "attention":
                memory_s = self._memory(kv_bytes, is_cached=is_cached)[0]
                compute_s = cost.flops / self._profile.attention_flops_per_s
            else:
                memory_s = max(memory_s, cost.activation_bytes / self._cache_bytes_per_s)
            terms[op] = compute_s, memory_s
        return terms

    def traffic_bytes(self, step: StepShape) -> dict[str, int]:
        """What each op must take from memory, or from the last cache where everything is in it: weights,
        distinct K and V (those it has just written among them), activations beyond the cache.
        """
        kv_bytes = distinct_kv_bytes(self._model, step.rows)
        return {
            op: kv_bytes if op == "attention" else self._streamed(op, cost)
            for op, cost in self.costs.of(step).items()
        }

    def _streamed(self, op: str, cost: OpCost) -> int:
        """Weights, and the activations that spill; where no cache is described none are taken to."""
        if not self.last_cache_bytes:
            return cost.weight_bytes
        return cost.weight_bytes + spilled_bytes(self._model, op, cost, self.last_cache_bytes)

    def is_cached(self, num_positions: int) -> bool:
        """Whether the last cache holds the weights and the K and V of so many positions."""
        return self.streamed_bytes + self._position_bytes * num_positions <= self.last_cache_bytes

    def row_ops(self, num_tokens: int, num_logits: int, *, is_cached: bool) -> dict[str, float]:
        """Seconds of the ops that depend on row counts alone; attention is 0."""
        costs = self.costs.of(StepShape((StepRow(0, num_tokens, num_logits),)))
        bounds = self._row_bounds(costs, num_tokens, num_logits, is_cached=is_cached)
        return {op: bound_s for op, (bound_s, _) in bounds.items()}

    def matrix_terms(self, num_tokens: int) -> tuple[float, float]:
        """(compute, memory) seconds of all products of a step in which each of its tokens needs logits.

        Memory is read at the bandwidth outside the caches. Their crossing is the ridge batch of decoding.
        """
        costs = self.costs.of(StepShape((StepRow(0, num_tokens, num_tokens),)))
        compute_s = sum(costs[op].flops / self._peak(self._formats[op], num_tokens)[0] for op in MATRIX_OPS)
        memory_s = sum(costs[op].weight_bytes for op in MATRIX_OPS) / self._profile.dram_bytes_per_s
        return compute_s, memory_s

    def attention(self, work: AttentionWork, *, is_cached: bool) -> float:
        """Seconds of attention in a model without windows, from its counts: the same as `of` has."""
        model = self._model
        flops_per_layer = model.num_heads * (4 * model.head_dim + SOFTMAX_FLOPS) * (
            work.num_single_pairs + work.num_group_pairs
        ) + work.num_tokens * (model.num_heads + model.q_size)
        kv_bytes = self._position_bytes * (work.num_old_positions + work.num_tokens)
        return self._attention(model.num_layers * flops_per_layer, kv_bytes, is_cached=is_cached)[0]

    def _attention(self, flops: int, kv_bytes: int, *, is_cached: bool) -> tuple[float, str]:
        memory = self._memory(kv_bytes, is_cached=is_cached)
        return max(memory, (flops / self._profile.attention_flops_per_s, "attention"))

    def _memory(self, num_bytes: int, *, is_cached: bool) -> tuple[float, str]:
        if is_cached:
            return num_bytes / self._cache_bytes_per_s, self._cache_name
        return num_bytes / self._profile.dram_bytes_per_s, "dram"

    def _row_bounds(
        self, costs: Mapping[str, OpCost], num_tokens: int, num_logits: int, *, is_cached: bool
    ) -> dict[str, tuple[float, str]]:
        bounds = {}
        for op, cost in costs.items():
            memory = self._memory(self._streamed(op, cost), is_cached=is_cached)
            if op in self._formats:
                peak, name = self._peak(self._formats[op], num_logits if op == "lm_head" else num_tokens)
                bounds[op] = max(memory, (cost.flops / peak, f"matmul {name}"))
            else:
                bounds[op] = max(memory, (cost.activation_bytes / self._cache_bytes_per_s, self._cache_name))
        bounds["attention"] = (0.0, "attention")
        return bounds

    def _peak(self, quant_type: str, num_tokens: int) -> tuple[float, str]:
        """FLOP/s of the format at this many tokens; of the fastest format where it was not measured."""
        by_type = self._profile.matmul_flops_per_s
        if quant_type not in by_type:
            quant_type = max(by_type, key=lambda name: by_type[name][-1][1])
        return best_rate(by_type[quant_type], num_tokens), quant_type


def best_rate(curve: Sequence[tuple[int, float]], num_tokens: int) -> float:
    """The highest rate measured at no more tokens, or on the line to the next point."""
    index = bisect_right(curve, (num_tokens, float("inf")))
    if index == 0:
        return curve[0][1]
    reached = max(rate for _, rate in curve[:index])
    if index == len(curve):
        return reached
    (left, left_rate), (right, right_rate) = curve[index - 1], curve[index]
    return max(reached, left_rate + (right_rate - left_rate) * (num_tokens - left) / (right - left))
