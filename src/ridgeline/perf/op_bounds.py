"""The least time an op can take on a machine: its roofline."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.op_cost import OpCost
from ridgeline.perf.op_costs import OpCosts, distinct_kv_bytes
from ridgeline.perf.step_shape import StepShape

_MATRICES = {
    "qkv_proj": ("q", "k", "v"),
    "o_proj": ("o",),
    "gate_up_proj": ("gate", "up"),
    "down_proj": ("down",),
}
MATRIX_OPS = (*_MATRICES, "lm_head")


class OpBounds:
    """max(FLOPs / peak, bytes / bandwidth) of each op of any step of one model.

    Bytes are those that must come from outside the caches: weights and distinct K and V from memory, or from
    the last cache where all of them fit it. Activations stay in the caches and count at its bandwidth.
    """

    def __init__(self, model: ModelShape, profile: HardwareProfile) -> None:
        self._model = model
        self._profile = profile
        self._costs = OpCosts(model)
        self._formats = {op: model.matrix_types[names[0]][0] for op, names in _MATRICES.items()}
        self._formats["lm_head"] = model.head_type
        last = max(profile.caches, key=lambda cache: cache.size_bytes, default=None)
        self.last_cache_bytes = last.size_bytes if last else 0
        self._cache_name = last.name if last else "dram"
        self._cache_bytes_per_s = last.read_bytes_per_s if last else profile.dram_bytes_per_s
        self.streamed_bytes = model.weights_bytes

    def of(self, step: StepShape) -> dict[str, float]:
        """Seconds by op, all layers together."""
        return {op: bound_s for op, (bound_s, _) in self.with_ceilings(step).items()}

    def with_ceilings(self, step: StepShape) -> dict[str, tuple[float, str]]:
        """Seconds by op, and the ceiling that sets them: `dram`, a cache, `attention` or `matmul Q4_1`."""
        kv_bytes = distinct_kv_bytes(self._model, step.rows)
        is_cached = self.streamed_bytes + kv_bytes <= self.last_cache_bytes
        return {
            op: self._bound(
                op, cost, step, kv_bytes=kv_bytes if op == "attention" else 0, is_cached=is_cached
            )
            for op, cost in self._costs.of(step).items()
        }

    def _bound(
        self, op: str, cost: OpCost, step: StepShape, *, kv_bytes: int, is_cached: bool
    ) -> tuple[float, str]:
        streamed = cost.weight_bytes + kv_bytes
        if is_cached:
            memory = streamed / self._cache_bytes_per_s, self._cache_name
        else:
            memory = streamed / self._profile.dram_bytes_per_s, "dram"
        if op == "attention":
            return max(memory, (cost.flops / self._profile.attention_flops_per_s, "attention"))
        if op in self._formats:
            num_rows = step.num_logits_rows if op == "lm_head" else step.num_tokens
            peak, name = self._peak(self._formats[op], num_rows)
            return max(memory, (cost.flops / peak, f"matmul {name}"))
        return max(memory, (cost.activation_bytes / self._cache_bytes_per_s, self._cache_name))

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
