"""A step on a roofline: per op its FLOPs, bytes, intensity, the term that binds, the speed it can reach.

t ≥ max(FLOPs / peak, bytes / bandwidth); intensity I = FLOPs / bytes; attainable = min(peak, I × bandwidth);
the two meet at the ridge, I = peak / bandwidth. Source: Williams, Waterman & Patterson, Roofline (2009).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.op_bounds import MATRIX_OPS, OpBounds
from ridgeline.perf.op_costs import OpCosts
from ridgeline.perf.step_shape import StepRow, StepShape


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRoofline:
    """One op of one step, or several together: work, bytes that must come from memory, least seconds.

    `traffic_bytes` are weights, distinct K and V, and activations that no cache holds. `compute_s` and
    `memory_s` are the two terms; where everything is in a cache, memory means that cache.
    """

    op: str
    flops: int
    traffic_bytes: int
    compute_s: float
    memory_s: float
    time_s: float

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte of memory traffic; None without any."""
        return self.flops / self.traffic_bytes if self.traffic_bytes else None

    @property
    def bound(self) -> str | None:
        """`compute` or `memory`: the larger term; None for an op that does nothing."""
        if not self.time_s:
            return None
        return "compute" if self.compute_s > self.memory_s else "memory"

    @property
    def attainable_flops_per_s(self) -> float | None:
        """The speed at which the op takes its least time; None for an op that takes none."""
        return self.flops / self.time_s if self.time_s else None


def step_roofline(bounds: OpBounds, step: StepShape) -> dict[str, OpRoofline]:
    """Every op of a step in the order of `OPS`; those without work have zeros."""
    terms, traffic_bytes = bounds.terms(step), bounds.traffic_bytes(step)
    return {
        op: OpRoofline(
            op=op,
            flops=cost.flops,
            traffic_bytes=traffic_bytes[op],
            compute_s=terms[op][0],
            memory_s=terms[op][1],
            time_s=max(terms[op]),
        )
        for op, cost in bounds.costs.of(step).items()
    }


def roofline_of(ops: Sequence[OpRoofline], name: str = "step") -> OpRoofline:
    """Several ops, one after the other: sums; its time is the sum of their times, not of one term."""
    return OpRoofline(
        op=name,
        flops=sum(each.flops for each in ops),
        traffic_bytes=sum(each.traffic_bytes for each in ops),
        compute_s=sum(each.compute_s for each in ops),
        memory_s=sum(each.memory_s for each in ops),
        time_s=sum(each.time_s for each in ops),
    )


def peak_flops_per_s(profile: HardwareProfile, quant_type: str) -> float | None:
    """The highest rate of products with these weights at any number of tokens; None where not published.

    A format that was not measured counts at the fastest one's rate, as in `OpBounds`.
    """
    peaks = {name: max(rate for _, rate in rates) for name, rates in profile.matmul_flops_per_s.items()}
    peak = peaks.get(quant_type, max(peaks.values(), default=math.inf))
    return peak if math.isfinite(peak) else None


def ridge_intensity(profile: HardwareProfile, quant_type: str) -> float | None:
    """FLOPs per byte at which compute and memory take equally long; None where the peak is not known."""
    peak = peak_flops_per_s(profile, quant_type)
    return None if peak is None else peak / profile.dram_bytes_per_s


def ridge_batch_at_peak(model: ModelShape, profile: HardwareProfile) -> float | None:
    """The ridge batch in closed form, were each product at its format's peak at any number of tokens.

    With W bytes of weights read a step, f FLOPs a token and type, bandwidth β and peaks π:
    B = (W / β) / Σ (f / π). One type of b bytes a weight makes f / W = 2 / b, so B = (b / 2) × ridge
    intensity: in 16 bits they are the same number. None where a peak is not known.
    """
    costs = OpCosts(model).of(StepShape((StepRow(0, 1, 1),)))
    compute_s = 0.0
    for op in MATRIX_OPS:
        peak = peak_flops_per_s(profile, model.op_format(op))
        if peak is None:
            return None
        compute_s += costs[op].flops / peak
    memory_s = sum(costs[op].weight_bytes for op in MATRIX_OPS) / profile.dram_bytes_per_s
    return memory_s / compute_s
