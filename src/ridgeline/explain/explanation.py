"""The explanation of one run, as the JSON of `ridgeline explain`; text and page are made from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ridgeline.build import EngineParts
from ridgeline.explain.bottlenecks import Bottleneck, Bottlenecks, Regime
from ridgeline.explain.computations import computations
from ridgeline.explain.path import PathStep, own_steps, request_path, timeline
from ridgeline.explain.phases import STEP_OPS, PhaseTotals, StepAccountant
from ridgeline.explain.recorder import RunRecord, StepRecord
from ridgeline.explain.sweeps import Sweeps
from ridgeline.explain.vllm_walk import VLLM_WALK, walk_document
from ridgeline.metrics.drift import Drift, find_drift
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.sampling_params import SamplingParams

_NO_PRODUCTS = {
    "predicted_s": None,
    "flops": 0,
    "bytes": None,
    "intensity_flops_per_byte": None,
    "bound": "overhead",
    "roofline_fraction": None,
}


def explanation(
    parts: EngineParts, profile: HardwareProfile, run: RunRecord, params: SamplingParams
) -> dict[str, Any]:
    """Everything but `model`, `request` and `output`, which any finished request has."""
    model, accountant, regime = (
        parts.model_shape,
        StepAccountant(parts.model_shape, profile),
        _regime(parts, run),
    )
    path, phases = request_path(run), accountant.phases(run)
    texts = computations(model, run, path, params)
    bottlenecks = Bottlenecks(model, profile, regime).of(path)
    return {
        "hardware": hardware_document(profile),
        "regime": {"batch": run.num_requests, "context": regime.context, "wall_s": run.wall_s},
        "path": [
            {**_measured(run, step), **_analysed(accountant, run, name), "computation": texts[name],
             **_growth(bottlenecks.get(name, ())), "vllm": VLLM_WALK[name].text}
            for name, step in path.items()
        ],
        "phases": {name: phase.document() for name, phase in phases.items()},
        "ops": [document for phase in phases.values() for document in phase.op_documents()],
        "drift": drift_document(run_drift(list(phases.values()))),
        "steps": [accountant.step_document(run, step) for step in run.steps],
        "timeline": [
            {"step": each.step, "start_s": each.start_s, "seconds": each.seconds} for each in timeline(run)
        ],
        "kv_cache": _kv_cache(parts, run),
        "sweeps": Sweeps(model, profile).document(
            batch=run.num_requests, context=regime.context, max_context=parts.limits.max_model_len
        ),
        "vllm": walk_document(),
    }  # fmt: skip


def hardware_document(profile: HardwareProfile) -> dict[str, Any]:
    """The ceilings as the JSON of `explain` and `plan` has them; a format's peak is its best at any count."""
    return {
        "cpu": profile.name,
        "threads": profile.num_threads,
        "dram_bytes_per_s": profile.dram_bytes_per_s,
        "peak_ops_per_s": {
            name: max(rate for _, rate in curve) for name, curve in profile.matmul_flops_per_s.items()
        },
        "attention_ops_per_s": profile.attention_flops_per_s,
        "caches": [
            {"name": each.name, "size_bytes": each.size_bytes, "read_bytes_per_s": each.read_bytes_per_s}
            for each in profile.caches
        ],
        "source": str(profile.source),
        "is_stable": profile.is_stable,
        "notes": list(profile.notes),
    }


def run_drift(phases: Sequence[PhaseTotals]) -> Drift | None:
    """Where the steps of a run, however short, took over 25 % more or less than predicted before.

    None: nowhere, or there was no prediction.
    """
    measured: dict[str, float] = {}
    predicted: dict[str, float] = {}
    for phase in phases:
        for op, totals in phase.ops.items():
            if totals.predicted_s is None:
                return None
            measured[op] = measured.get(op, 0.0) + totals.seconds
            predicted[op] = predicted.get(op, 0.0) + totals.predicted_s
    return find_drift(measured, predicted, least_busy_s=0.0)


def drift_document(drift: Drift | None) -> dict[str, Any] | None:
    """The drift as JSON has it, with its sentence; an op that was not predicted has no ratio."""
    if drift is None:
        return None
    op_ratio = drift.op_ratio if math.isfinite(drift.op_ratio) else None
    return {**asdict(drift), "op_ratio": op_ratio, "text": str(drift)}


def _regime(parts: EngineParts, run: RunRecord) -> Regime:
    scheduler = parts.config.scheduler
    return Regime(
        num_requests=run.num_requests,
        num_prompt_tokens=run.num_prompt_tokens,
        num_output_tokens=len(run.output.outputs[0].token_ids),
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        limits=parts.limits,
    )


def _measured(run: RunRecord, step: PathStep) -> dict[str, Any]:
    return {
        "step": step.step,
        "seconds": step.seconds,
        "share": step.seconds / run.wall_s,
        "count": step.count,
        "parts": dict(step.parts),
    }


def _analysed(accountant: StepAccountant, run: RunRecord, name: str) -> dict[str, Any]:
    """What the ops of a step of the path computed and moved; the path itself has its seconds."""
    if name in ("prefill", "decode"):
        total = accountant.total(own_steps(run, name), [op for op in STEP_OPS if op != "sample"])
    elif name == "sample":
        steps = [*own_steps(run, "prefill"), *own_steps(run, "decode")]
        total = accountant.total(steps, ["sample"])
    else:
        return dict(_NO_PRODUCTS)
    document = total.document()
    del document["seconds"]
    return document


def _growth(bottlenecks: Sequence[Bottleneck]) -> dict[str, Any]:
    return {
        "bottleneck": "; ".join(each.text for each in bottlenecks) or "never by itself",
        "bottlenecks": [each.document() for each in bottlenecks],
    }


def _kv_cache(parts: EngineParts, run: RunRecord) -> dict[str, Any]:
    peak = max(run.steps, key=_cached_tokens)
    tokens, block_size = _cached_tokens(peak), parts.limits.block_size
    return {
        "block_size": block_size,
        "bytes_per_token": parts.kv_shape.bytes_per_token,
        "bytes_per_token_formula": parts.kv_shape.formula,
        "blocks_peak": peak.num_blocks,
        "tokens_peak": tokens,
        "slack_tokens": peak.num_blocks * block_size - tokens,
        "allocated_bytes": peak.num_blocks * parts.kv_block_bytes,
    }


def _cached_tokens(step: StepRecord) -> int:
    """Tokens of a step's requests whose K and V are in the cache after it."""
    return sum(row.num_computed_tokens + row.num_scheduled_tokens for row in step.shape.rows)
