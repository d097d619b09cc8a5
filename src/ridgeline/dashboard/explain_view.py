"""What an explanation says, as cells and sentences, once: terminal and page agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ridgeline.perf.hardware import UNCERTAIN
from ridgeline.perf.quantities import (
    amount,
    bytes_text,
    flops_text,
    milliseconds,
    number,
    percent,
    rate_text,
)

Document = Mapping[str, Any]
Columns = Mapping[str, Callable[[Document], str]]
"""Head → what a row's document has there."""


def _composition(step: Document) -> str:
    parts = []
    if step["prefill_tokens"]:
        parts.append(f"{step['prefill_tokens']:,} of prompts")
    if step["decode_tokens"]:
        parts.append(f"{step['decode_tokens']:,} decoded")
    return " + ".join(parts)


PATH_COLUMNS: Columns = MappingProxyType(
    {
        "step": lambda step: step["step"],
        "time": lambda step: milliseconds(step["seconds"]),
        "share": lambda step: percent(step["share"]),
        "predicted": lambda step: milliseconds(step["predicted_s"]),
        "runs": lambda step: f"{step['count']:,}",
        "FLOP": lambda step: amount(step["flops"]) if step["flops"] else "–",
        "bytes": lambda step: amount(step["bytes"]),
        "FLOP/B": lambda step: number(step["intensity_flops_per_byte"]),
        "waits for": lambda step: step["bound"],
        "roof": lambda step: percent(step["roofline_fraction"]),
    }
)
PHASE_ROWS: Columns = MappingProxyType(
    {
        "tokens": lambda phase: f"{phase['tokens']:,}",
        "steps": lambda phase: f"{phase['steps']:,}",
        "time": lambda phase: milliseconds(phase["seconds"]),
        "predicted before": lambda phase: milliseconds(phase["predicted_s"]),
        "tokens/s": lambda phase: number(phase["tok_s"]),
        "work": lambda phase: flops_text(phase["flops"]),
        "bytes": lambda phase: bytes_text(phase["bytes"]),
        "of these from memory": lambda phase: bytes_text(phase["dram_bytes"]),
        "FLOP per byte": lambda phase: number(phase["intensity_flops_per_byte"]),
        "FLOP per byte from memory": lambda phase: number(phase["dram_intensity_flops_per_byte"]),
        "waits for": lambda phase: phase["bound"],
        "least time: compute": lambda phase: milliseconds(phase["compute_s"]),
        "least time: memory": lambda phase: milliseconds(phase["memory_s"]),
        "of the roofline": lambda phase: percent(phase["roofline_fraction"]),
        "ops' share of the time": lambda phase: percent(phase["op_share"]),
        "kernels' share of the time": lambda phase: percent(phase["kernel_share"]),
    }
)
STEP_COLUMNS: Columns = MappingProxyType(
    {
        "computes": _composition,
        "context": lambda step: f"{step['context']:,}",
        "time": lambda step: milliseconds(step["seconds"]),
        "predicted": lambda step: milliseconds(step["predicted_s"]),
        "FLOP/B": lambda step: number(step["dram_intensity_flops_per_byte"]),
        "waits for": lambda step: step["bound"],
        "roof": lambda step: percent(step["roofline_fraction"]),
    }
)
OP_COLUMNS: Columns = MappingProxyType(
    {
        "op": lambda op: op["op"],
        "phase": lambda op: op["phase"],
        "time": lambda op: milliseconds(op["seconds"]),
        "share": lambda op: percent(op["share"]),
        "predicted": lambda op: milliseconds(op["predicted_s"]),
        "FLOP": lambda op: amount(op["flops"]) if op["flops"] else "–",
        "bytes": lambda op: amount(op["dram_bytes"]) if op["dram_bytes"] else "–",
        "of weights": lambda op: amount(op["weight_bytes"]),
        "of KV": lambda op: amount(op["kv_bytes"]),
        "of activations": lambda op: amount(op["activation_bytes"]),
        "FLOP/B": lambda op: number(op["dram_intensity_flops_per_byte"]),
        "waits for": lambda op: op["bound"],
        "roof": lambda op: percent(op["roofline_fraction"]) if op["bound_s"] else "–",
    }
)


def phase_cells(title: str, phases: Document) -> list[str]:
    """One row of `PHASE_ROWS`; a phase without steps has dashes."""
    return [PHASE_ROWS[title](phase) if phase["steps"] else "–" for phase in phases.values()]


def model_line(document: Document) -> str:
    """Whose path it is."""
    model = document["model"]
    return f"{model['name']} · {bytes_text(model['weights_bytes'])} of weights"


def machine_line(document: Document) -> str:
    """Ceilings in one line; of products those with the model's own weights."""
    hardware, groups = document["hardware"], document["sweeps"]["weights"].values()
    own = dict.fromkeys(name for by_type in groups for name in by_type)
    peaks = ", ".join(f"{name} {rate_text(hardware['peak_ops_per_s'].get(name), 'FLOP')}" for name in own)
    caches = "".join(f", {c['name']} {rate_text(c['read_bytes_per_s'], 'B')}" for c in hardware["caches"])
    threads = "1 thread" if hardware["threads"] == 1 else f"{hardware['threads']} threads"
    memory = rate_text(hardware["dram_bytes_per_s"], "B")
    return f"{hardware['cpu']}, {threads}: memory {memory}{caches}; products {peaks} ({hardware['source']})"


def request_line(document: Document) -> str:
    """Lengths and latencies."""
    request, batch = document["request"], document["regime"]["batch"]
    others = "" if batch == 1 else f", the last of {batch} alike"
    return (
        f"{request['prompt_tokens']:,} prompt + {request['completion_tokens']:,} output tokens{others}: TTFT "
        f"{milliseconds(request['ttft_s'])}, TPOT {milliseconds(request['tpot_s'])}, in all "
        f"{milliseconds(request['e2e_s'])}"
    )


def cache_line(cache: Document) -> str:
    """Blocks at their fullest, and the formula of a token."""
    return (
        f"KV cache at its fullest: {cache['tokens_peak']:,} tokens in {cache['blocks_peak']:,} blocks of "
        f"{cache['block_size']} = {bytes_text(cache['allocated_bytes'])}, {cache['slack_tokens']} slots "
        f"empty; a token: {cache['bytes_per_token_formula']}"
    )


def warnings(document: Document) -> Iterator[str]:
    """What makes the figures less certain: each with what to do."""
    if not document["hardware"]["is_stable"]:
        yield UNCERTAIN
    for note in document["raised_ceilings"]:
        yield f"A ceiling was beaten, so it was too low: {note}."
    if document["drift"] is not None:
        yield f"Drift: {document['drift']['text']}"


def answer_line(answer: Document) -> str:
    """A what-if's sentence, and the run that checked it or why there was none."""
    line, checked = f"{answer['phase']}: {answer['sentence']}", answer["checked"]
    if checked is not None:
        error = f"{100 * checked['error']:+.0f} %".replace("-", "−")
        ran = "a real run" if checked["weights"] == "own" else "a real run of made-up weights of these types"
        return f"{line}; {ran} took {milliseconds(checked['measured_s'])}: predicted {error}"
    return f"{line}; not run here: {answer['not_checked']}" if answer["phase"] == "decode" else line


def measured_line(step: Document) -> str:
    """Where a step of the path spent its seconds, and how near to the roofline."""
    measured = ", ".join(f"{name} {milliseconds(seconds)}" for name, seconds in step["parts"].items())
    if not step["bytes"]:
        return measured
    return (
        f"{measured}; {flops_text(step['flops'])} and {bytes_text(step['bytes'])}, "
        f"{number(step['intensity_flops_per_byte'])} FLOP/B: waits for {step['bound']}, "
        f"{percent(step['roofline_fraction'])} of the roofline"
    )


def vllm_line(step: Document) -> str:
    """Where and how vLLM does the same."""
    return f"{step['where']}. {step['how']}"


def shown_steps(steps: Sequence[Document], most: int) -> list[int]:
    """At most so many of them in order: the first three, the slowest, the last."""
    if len(steps) <= most:
        return list(range(len(steps)))
    by_time = sorted(range(3, len(steps) - 1), key=lambda index: -steps[index]["seconds"])
    return sorted([0, 1, 2, len(steps) - 1, *by_time[: most - 4]])
