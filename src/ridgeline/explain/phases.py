"""Prefill and decode, op by op: what was computed and moved, what it took, what it could have taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.explain.recorder import RunRecord, StepRecord
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.op_bounds import OpBounds
from ridgeline.perf.op_cost import OPS, OpCost
from ridgeline.perf.predict import STEP_OVERHEAD

PHASES = ("prefill", "decode")
STEP_OPS = (*OPS, STEP_OVERHEAD)
"""The kernels' ops, and the engine's own work around them (`StepRecord.own_seconds`)."""
_LAYER_OPS = ("qkv_proj", "attention", "o_proj", "gate_up_proj", "down_proj")
_NO_COST = OpCost(0, 0, 0, 0, 0)


@dataclass(slots=True)
class OpTotals:
    """One op over some steps. Seconds: measured, predicted before, and the least by each term.

    `dram_bytes` must come from memory: weights, each position's K and V once, activations beyond the cache.
    """

    cost: OpCost = _NO_COST
    dram_bytes: int = 0
    seconds: float = 0.0
    predicted_s: float | None = 0.0
    compute_s: float = 0.0
    memory_s: float = 0.0
    overhead_s: float = 0.0
    bound_s: float = 0.0

    def add(self, other: OpTotals) -> None:
        """Sum everything; a prediction that is missing once is missing."""
        self.cost = OpCost(*map(sum, zip(self.cost, other.cost, strict=True)))
        self.dram_bytes += other.dram_bytes
        if self.predicted_s is None or other.predicted_s is None:
            self.predicted_s = None
        else:
            self.predicted_s += other.predicted_s
        for name in ("seconds", "compute_s", "memory_s", "overhead_s", "bound_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def bound(self) -> str:
        """The largest of the three terms: what the time is spent waiting for."""
        terms = {"compute": self.compute_s, "memory": self.memory_s, "overhead": self.overhead_s}
        return max(terms, key=lambda name: terms[name])

    def document(self, *, seconds: float | None = None) -> dict[str, Any]:
        """What ops, phases and steps share in the JSON; `seconds` of the whole where ops are not all."""
        taken_s = self.seconds if seconds is None else seconds
        return {
            "seconds": taken_s,
            "predicted_s": self.predicted_s,
            "flops": self.cost.flops,
            "bytes": self.cost.num_bytes,
            "weight_bytes": self.cost.weight_bytes,
            "kv_bytes": self.cost.kv_bytes,
            "activation_bytes": self.cost.activation_bytes,
            "dram_bytes": self.dram_bytes,
            "intensity_flops_per_byte": ratio(self.cost.flops, self.cost.num_bytes),
            "dram_intensity_flops_per_byte": ratio(self.cost.flops, self.dram_bytes),
            "bound": self.bound,
            "compute_s": self.compute_s,
            "memory_s": self.memory_s,
            "overhead_s": self.overhead_s,
            "bound_s": self.bound_s,
            "roofline_fraction": ratio(self.bound_s, taken_s),
        }


@dataclass(slots=True)
class PhaseTotals:
    """Steps of one phase; `ops` in order. A step with any token of a prompt belongs to prefill.

    `num_tokens` are the phase's own; `num_other_tokens` were decoded in steps that belong to prefill.
    `seconds` are the steps', of which the ops take nearly all; `own_seconds` parts of `step_overhead`.
    """

    phase: str
    num_tokens: int = 0
    num_other_tokens: int = 0
    num_steps: int = 0
    seconds: float = 0.0
    own_seconds: dict[str, float] = field(default_factory=dict)
    ops: dict[str, OpTotals] = field(default_factory=lambda: {op: OpTotals() for op in STEP_OPS})

    def document(self) -> dict[str, Any]:
        """The phase as JSON has it; `op_share` is the ops' part of its time, `kernel_share` the kernels'."""
        total = total_of(self.ops.values())
        kernels_s = total.seconds - self.ops[STEP_OVERHEAD].seconds
        return {
            "tokens": self.num_tokens,
            "decode_tokens_beside": self.num_other_tokens,
            "steps": self.num_steps,
            "tok_s": ratio(self.num_tokens, self.seconds),
            "op_share": ratio(total.seconds, self.seconds),
            "kernel_share": ratio(kernels_s, self.seconds),
            "step_overhead_parts": dict(self.own_seconds),
            **total.document(seconds=self.seconds),
        }

    def op_documents(self) -> list[dict[str, Any]]:
        """Its ops as JSON has them; those that never ran are left out."""
        return [
            {"phase": self.phase, "op": op, "share": ratio(each.seconds, self.seconds), **each.document()}
            for op, each in self.ops.items()
            if each.seconds or each.cost.num_bytes
        ]


class StepAccountant:
    """Costs, bounds and times of steps for one model on one machine."""

    def __init__(self, model: ModelShape, profile: HardwareProfile) -> None:
        self._bounds = OpBounds(model, profile)
        barrier_s = profile.overheads_s.get("barrier", 0.0)
        self._overheads_s = {op: barrier_s * (model.num_layers if op in _LAYER_OPS else 1) for op in OPS}

    def op_totals(self, step: StepRecord) -> dict[str, OpTotals]:
        """One step, by each of `STEP_OPS`; what they leave of its seconds no reading of a clock covers."""
        shape, prediction = step.shape, step.prediction
        terms, traffic_bytes = self._bounds.terms(shape), self._bounds.traffic_bytes(shape)
        totals = {}
        for op, cost in self._bounds.costs.of(shape).items():
            totals[op] = OpTotals(
                cost=cost,
                dram_bytes=traffic_bytes[op],
                seconds=step.op_seconds.get(op, 0.0),
                predicted_s=prediction.op_s[op] if prediction is not None else None,
                compute_s=terms[op][0],
                memory_s=terms[op][1],
                overhead_s=self._overheads_s[op] if cost.num_bytes else 0.0,
                bound_s=max(terms[op]),
            )
        overhead_s = sum(step.own_seconds.values())
        totals[STEP_OVERHEAD] = OpTotals(
            seconds=overhead_s,
            predicted_s=prediction.op_s[STEP_OVERHEAD] if prediction is not None else None,
            overhead_s=overhead_s,
        )
        return totals

    def total(self, steps: Iterable[StepRecord], ops: Sequence[str] = STEP_OPS) -> OpTotals:
        """Some ops of some steps together."""
        totals = [self.op_totals(step) for step in steps]
        return total_of(each[op] for each in totals for op in ops)

    def phases(self, run: RunRecord) -> dict[str, PhaseTotals]:
        """Both phases over all steps of a run."""
        phases = {name: PhaseTotals(name) for name in PHASES}
        for step in run.steps:
            num_prefill = num_prefill_tokens(step, run.num_prompt_tokens)
            phase = phases["prefill" if num_prefill else "decode"]
            phase.num_tokens += num_prefill or step.shape.num_tokens
            phase.num_other_tokens += step.shape.num_tokens - (num_prefill or step.shape.num_tokens)
            phase.num_steps += 1
            phase.seconds += step.seconds
            for name, seconds in step.own_seconds.items():
                phase.own_seconds[name] = phase.own_seconds.get(name, 0.0) + seconds
            for op, totals in self.op_totals(step).items():
                phase.ops[op].add(totals)
        return phases

    def step_document(self, run: RunRecord, step: StepRecord) -> dict[str, Any]:
        """One step as JSON has it; `at_s` counts from the request's arrival."""
        shape = step.shape
        num_prefill = num_prefill_tokens(step, run.num_prompt_tokens)
        return {
            "phase": "prefill" if num_prefill else "decode",
            "at_s": step.scheduling_at_s - run.arrived_at_s,
            "requests": len(shape.rows),
            "prefill_tokens": num_prefill,
            "decode_tokens": shape.num_tokens - num_prefill,
            "context": max(row.num_computed_tokens + row.num_scheduled_tokens for row in shape.rows),
            **total_of(self.op_totals(step).values()).document(seconds=step.seconds),
        }


def total_of(each: Iterable[OpTotals]) -> OpTotals:
    """All together; the bound is that of the sums of their terms."""
    total = OpTotals()
    for one in each:
        total.add(one)
    return total


def num_prefill_tokens(step: StepRecord, num_prompt_tokens: int) -> int:
    """Tokens of a step that belong to prompts (all requests of a run have one length), or were computed
    before and are again.
    """
    return sum(
        row.num_scheduled_tokens
        for row in step.shape.rows
        if row.num_computed_tokens < num_prompt_tokens or row.num_scheduled_tokens > 1
    )


def ratio(part: float, whole: float) -> float | None:
    """None where there is nothing to divide by."""
    return part / whole if whole else None
