"""In words and figures, what each step of the path computed."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.explain.path import PathStep, own_steps
from ridgeline.explain.recorder import RunRecord
from ridgeline.perf.context_sums import visible_positions
from ridgeline.perf.model_shape import LAYER_MATRICES, ModelShape
from ridgeline.sampling_params import SamplingParams


def computations(
    model: ModelShape, run: RunRecord, path: Mapping[str, PathStep], params: SamplingParams
) -> dict[str, str]:
    """By step of the path."""
    return {
        "tokenize": f"text → {run.num_prompt_tokens:,} token ids: chat template, byte-level BPE; one thread",
        "queue": _queue(path["queue"]),
        "prefill": _prefill(model, run),
        "decode": _decode(model, run),
        "sample": _sample(model, params),
        "detokenize": "token ids → bytes → whole UTF-8 characters, and a look for stop strings; one thread",
        "unaccounted": "what lies between two recorded instants: the loop around the engine, the recording",
    }


def layer_weights(model: ModelShape) -> int:
    """Weights that the products of one token use, the head's apart."""
    shapes = [model.matrix_shape(name) for name in LAYER_MATRICES]
    return model.num_layers * sum(rows * cols for rows, cols in shapes)


def _queue(queue: PathStep) -> str:
    if "steps of others" in queue.parts:
        return "nothing: it waited while steps computed prompts that were there before"
    return "nothing: the engine was idle, so only until its first step"


def _prefill(model: ModelShape, run: RunRecord) -> str:
    steps = own_steps(run, "prefill")
    rows = [row for step in steps for row in step.shape.rows]
    pairs = sum(visible_positions(row.num_computed_tokens, row.num_scheduled_tokens) for row in rows)
    num_tokens = sum(step.shape.num_tokens for step in steps)
    others = f" of {len(steps[0].shape.rows)} requests" if steps and len(steps[0].shape.rows) > 1 else ""
    return (
        f"{num_tokens:,} tokens{others} in {_counted(len(steps), 'chunk')}: the products of each with "
        f"{layer_weights(model) / 1e6:,.1f} M weights, 2 FLOP a weight; causal attention over {pairs:,} "
        f"pairs of positions in each of {model.num_layers} layers; logits of last tokens only"
    )


def _decode(model: ModelShape, run: RunRecord) -> str:
    steps = own_steps(run, "decode")
    if not steps:
        return "nothing: the first token was the last"
    contexts = [max(row.num_computed_tokens + 1 for row in step.shape.rows) for step in steps]
    num_weights = layer_weights(model) + model.vocab_size * model.hidden_size
    tokens = max(step.shape.num_tokens for step in steps)
    return (
        f"{_counted(len(steps), 'step')} of {_counted(tokens, 'token')}: each reads "
        f"{num_weights / 1e6:,.1f} M weights ({model.weights_bytes / 1e6:,.1f} MB with the vectors), "
        f"and K and V of "
        f"{min(contexts):,} … {max(contexts):,} positions a request, "
        f"{model.kv_shape.bytes_per_token:,} B each"
    )


def _sample(model: ModelShape, params: SamplingParams) -> str:
    scan = f"one pass over {model.vocab_size:,} logits a token"
    if params.temperature == 0:
        return f"greedy: {scan} for the largest"
    limits = {"top_k": params.top_k, "top_p": params.top_p if params.top_p < 1 else 0, "min_p": params.min_p}
    named = [f"{name} {value:g}" for name, value in limits.items() if value]
    return f"a draw at temperature {params.temperature:g}{', ' if named else ''}{', '.join(named)}: {scan}"


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
