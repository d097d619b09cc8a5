"""What the machine allows, measured beside the speeds, and what a workload asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ridgeline.bench.keys import Kind, Workload
from ridgeline.config.model import ModelConfig
from ridgeline.core.events import StepFinished
from ridgeline.formats.gguf import open_gguf
from ridgeline.kernels.machine_ops import read_seconds

_READ_BYTES = 256 * 2**20
_NUM_READS = 5
_LAYER_OPS = {
    "qkv_proj": ("attn_q", "attn_k", "attn_v"),
    "o_proj": ("attn_output",),
    "gate_up_proj": ("ffn_gate", "ffn_up"),
    "down_proj": ("ffn_down",),
}


@dataclass(frozen=True, slots=True)
class ModelWork:
    """What one step of a model costs, counted from the shapes of its tensors.

    `step_bytes` are read once per step (the matrices; of an untied embedding only rows are read);
    `token_macs` per token, `op_macs` the same by op; `head_macs` per row of logits; `pair_macs` and
    `kv_bytes` per token and position of its context that attention looks at.
    """

    step_bytes: int
    token_macs: int
    op_macs: Mapping[str, int]
    head_macs: int
    pair_macs: int
    kv_bytes: float


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes read from memory and multiply-adds of one sample."""

    num_bytes: float
    macs: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """`read_bytes_s`: streaming reads with the threads used, bytes/s. `kernel_macs_s`: multiply-adds/s of the
    fastest matrix op in a step of many tokens; None where the executor tells no such ops.
    """

    read_bytes_s: float
    kernel_macs_s: float | None


def model_work(path: Path, config: ModelConfig, *, kv_bytes: float) -> ModelWork:
    """Count the tensors of a model file; `kv_bytes` are those of K and V of one token, all layers."""
    with open_gguf(path) as file:
        tensors = dict(file.tensors)
    matrices = {name: tensor for name, tensor in tensors.items() if len(tensor.shape) == 2}
    head = "output.weight" if "output.weight" in matrices else "token_embd.weight"
    op_macs = {
        op: sum(
            tensor.shape[0] * tensor.shape[1]
            for name, tensor in matrices.items()
            if name.startswith("blk.") and name.split(".")[2] in parts
        )
        for op, parts in _LAYER_OPS.items()
    }
    unread = tensors["token_embd.weight"].size_bytes if head == "output.weight" else 0
    return ModelWork(
        step_bytes=sum(tensor.size_bytes for tensor in tensors.values()) - unread,
        token_macs=sum(op_macs.values()),
        op_macs=op_macs,
        head_macs=matrices[head].shape[0] * matrices[head].shape[1],
        pair_macs=2 * config.num_heads * config.head_dim * config.num_layers,
        kv_bytes=kv_bytes,
    )


def work_of(workload: Workload, model: ModelWork, *, max_num_batched_tokens: int) -> Work | None:
    """What one sample of a key reads and computes; None for loading."""
    if workload.kind is Kind.LOAD:
        return None
    if workload.kind is Kind.DECODE:
        return _decode_work(workload, model, first_context=workload.num_in + 1, num_steps=workload.num_out)
    prompts = _prefill_work(workload, model, max_num_batched_tokens)
    decode = _decode_work(workload, model, first_context=workload.num_in + 1, num_steps=workload.num_out - 1)
    return Work(prompts.num_bytes + decode.num_bytes, prompts.macs + decode.macs)


def _prefill_work(workload: Workload, model: ModelWork, max_num_batched_tokens: int) -> Work:
    """Each step reads the matrices once, and the context so far once for each piece of a prompt."""
    num_tokens = workload.num_seqs * workload.num_in
    num_steps = -(-num_tokens // max_num_batched_tokens)
    ends = [*range(max_num_batched_tokens, workload.num_in, max_num_batched_tokens), workload.num_in]
    num_pairs = workload.num_in * (workload.num_in + 1) // 2
    return Work(
        num_steps * model.step_bytes + workload.num_seqs * sum(ends) * model.kv_bytes,
        num_tokens * model.token_macs + workload.num_seqs * (model.head_macs + num_pairs * model.pair_macs),
    )


def _decode_work(workload: Workload, model: ModelWork, *, first_context: int, num_steps: int) -> Work:
    num_positions = sum(range(first_context, first_context + num_steps)) * workload.num_seqs
    num_tokens = num_steps * workload.num_seqs
    return Work(
        num_steps * model.step_bytes + num_positions * model.kv_bytes,
        num_tokens * (model.token_macs + model.head_macs) + num_positions * model.pair_macs,
    )


def read_bandwidth(num_threads: int) -> float:
    """Bytes/s of the fastest of a few passes over a buffer that no cache holds."""
    # Written, not zeros: untouched pages would all be one page of zeros.
    buffer = np.full(_READ_BYTES, 1, np.uint8)
    return _READ_BYTES / min(read_seconds(buffer, num_threads) for _ in range(_NUM_READS))


def kernel_peak(step: StepFinished, model: ModelWork) -> float | None:
    """Multiply-adds/s of the fastest matrix op of a step."""
    num_tokens = sum(num_scheduled for *_, num_scheduled in step.composition)
    rates = [
        num_tokens * macs / step.op_seconds[op]
        for op, macs in model.op_macs.items()
        if step.op_seconds.get(op, 0) > 0
    ]
    return max(rates, default=None)


def fractions(work: Work, ceilings: Ceilings, *, seconds: float) -> dict[str, float | None]:
    """Which part of each ceiling a sample of `seconds` reached."""
    read_s = work.num_bytes / ceilings.read_bytes_s
    compute_s = work.macs / ceilings.kernel_macs_s if ceilings.kernel_macs_s else None
    return {
        "of_read_bandwidth": read_s / seconds,
        "of_kernel_peak": compute_s / seconds if compute_s is not None else None,
    }
