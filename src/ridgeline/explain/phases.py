"""Prefill and decode, op by op: what was computed and moved, what it took, what it could have taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.explain.recorder import RunRecord, StepRecord
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.op_bounds import OpBounds
from ridgeline.perf.op_cost import OPS, OpCost
from ridgeline.perf.op_costs import OpCosts, distinct_kv_bytes

PHASES = ("prefill", "decode")
_LAYER_OPS = ("qkv_proj", "attention", "o_proj", "gate_up_proj", "down_proj")
_NO_COST = OpCost(0, 0, 0, 0, 0)


@dataclass(slots=True)
class OpTotals:
    """One op of one phase, all its steps together. Seconds: measured, predicted before, least by term."""

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
        self.predicted_s = (
            None if self.predicted_s is None or other.predicted_s is None
            else self.predicted_s + other.predicted_s
        )
        for name in ("seconds", "compute_s", "memory_s", "overhead_s", "bound_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def bound(self) -> str:
        """The largest of the three terms: what the time is spent waiting for."""
        terms = {"compute": self.compute_s, "memory": self.memory_s, "overhead": self.overhead_s}
        return max(terms, key=lambda name: terms[name])

    def document(self) -> dict[str, Any]:
        """What ops and phases share in the JSON."""
        return {
            "flops": self.cost.flops,
            "dram_bytes": self.dram_bytes,
            "intensity_flops_per_byte": ratio(self.cost.flops, self.cost.num_bytes),
            "dram_intensity_flops_per_byte": ratio(self.cost.flops, self.dram_bytes),
            "bound": self.bound,
            "compute_s": self.compute_s,
            "memory_s": self.memory_s,
            "overhead_s": self.overhead_s,
            "roofline_fraction": ratio(self.bound_s, self.seconds),
        }


@dataclass(slots=True)
class PhaseTotals:
    """Steps of one phase; `ops` in order. A step with any token of a prompt belongs to prefill.

    `num_tokens` are the phase's own; `num_other_tokens` were decoded in steps that belong to prefill.
    """

    phase: str
    num_tokens: int = 0
    num_other_tokens: int = 0
    num_steps: int = 0
    seconds: float = 0.0
    predicted_s: float | None = 0.0
    ops: dict[str, OpTotals] = field(default_factory=lambda: {op: OpTotals() for op in OPS})

    @property
    def total(self) -> OpTotals:
        """All ops together; the bound is that of the sums of their terms."""
        total = OpTotals()
        for each in self.ops.values():
            total.add(each)
        total.seconds, total.predicted_s = self.seconds, self.predicted_s
        return total

    def document(self) -> dict[str, Any]:
        """The phase as JSON has it."""
        total = self.total
        return {
            "tokens": self.num_tokens,
            "decode_tokens_beside": self.num_other_tokens,
            "steps": self.num_steps,
            "seconds": self.seconds,
            "predicted_s": self.predicted_s,
            "tok_s": ratio(self.num_tokens, self.seconds),
            "bytes": total.cost.num_bytes,
            "ops_share": ratio(sum(each.seconds for each in self.ops.values()), self.seconds),
            **total.document(),
        }

    def op_documents(self) -> list[dict[str, Any]]:
        """Its ops as JSON has them; those that never ran are left out."""
        return [
            {
                "phase": self.phase,
                "op": op,
                "seconds": each.seconds,
                "predicted_s": each.predicted_s,
                "weight_bytes": each.cost.weight_bytes,
                "kv_bytes": each.cost.kv_bytes,
                "activation_bytes": each.cost.activation_bytes,
                **each.document(),
            }
            for op, each in self.ops.items()
            if each.seconds or each.cost.num_bytes
        ]


class PhaseAccountant:
    """Adds up steps for one model on one machine."""

    def __init__(self, model: ModelShape, profile: HardwareProfile) -> None:
        self._model = model
        self._costs = OpCosts(model)
        self._bounds = OpBounds(model, profile)
        barrier_s = profile.overheads_s.get("barrier", 0.0)
        self._overheads_s = {
            op: barrier_s * (model.num_layers if op in _LAYER_OPS else 1) for op in OPS
        }

    def phases(self, run: RunRecord) -> dict[str, PhaseTotals]:
        """Both phases over all steps of a run."""
        phases = {name: PhaseTotals(name) for name in PHASES}
        for step in run.steps:
            if not step.shape.rows:
                continue
            num_prefill = num_prefill_tokens(step, run.num_prompt_tokens)
            phase = phases["prefill" if num_prefill else "decode"]
            phase.num_tokens += num_prefill or step.shape.num_tokens
            phase.num_other_tokens += step.shape.num_tokens - (num_prefill or step.shape.num_tokens)
            phase.num_steps += 1
            phase.seconds += step.seconds
            predicted_s = step.prediction.total_s if step.prediction is not None else None
            phase.predicted_s = _sum(phase.predicted_s, predicted_s)
            for op, totals in self.op_totals(step).items():
                phase.ops[op].add(totals)
        return phases

    def op_totals(self, step: StepRecord) -> dict[str, OpTotals]:
        """One step, op by op."""
        shape, predicted = step.shape, step.prediction
        terms = self._bounds.terms(shape)
        kv_bytes = distinct_kv_bytes(self._model, shape.rows)
        return {
            op: OpTotals(
                cost=cost,
                dram_bytes=cost.weight_bytes
                + cost.kv_written_bytes
                + (kv_bytes if op == "attention" else 0),
                seconds=step.op_seconds.get(op, 0.0),
                predicted_s=predicted.op_s[op] if predicted is not None else None,
                compute_s=terms[op][0],
                memory_s=terms[op][1],
                overhead_s=self._overheads_s[op] if cost.num_bytes else 0.0,
                bound_s=max(terms[op]),
            )
            for op, cost in self._costs.of(shape).items()
        }


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


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def kv_peak(steps: Sequence[StepRecord]) -> StepRecord:
    """The step after which most tokens had their K and V in the cache."""
    return max(steps, key=cached_tokens)


def cached_tokens(step: StepRecord) -> int:
    """Tokens of a step's requests whose K and V are in the cache after it."""
    return sum(row.num_computed_tokens + row.num_scheduled_tokens for row in step.shape.rows)


def weights_by_type(model: ModelShape) -> Mapping[str, Mapping[str, int]]:
    """Stored bytes that a step reads: group of matrices → quant type → bytes."""
    groups = {
        "attention, Q K V": ("q", "k", "v"),
        "attention, output": ("o",),
        "FFN, gate and up": ("gate", "up"),
        "FFN, down": ("down",),
        "head": ("token_embd" if model.is_tied else "lm_head",),
    }
    found: dict[str, dict[str, int]] = {}
    for group, names in groups.items():
        by_type = found.setdefault(group, {})
        for name in names:
            per_type = model.matrix_bytes_by_type(name)
            for quant_type, num_bytes in per_type.items():
                by_type[quant_type] = by_type.get(quant_type, 0) + num_bytes
    return found
