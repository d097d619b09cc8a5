"""Where one bound gives way to another: at which batch, context or prompt length, computed.

Each is the crossing of two terms of the same roofline or prediction that every step is explained with.
"""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.perf.model_shape import ModelShape
from ridgeline.perf.op_bounds import MATRIX_OPS, OpBounds
from ridgeline.perf.predict import STEP_OVERHEAD, Predictor
from ridgeline.perf.step_shape import StepRow, StepShape

MAX_BATCH = 4096
MAX_CONTEXT = 1 << 20


def decode_step(batch: int, context: int) -> StepShape:
    """`batch` requests that each compute the token after `context` tokens, and sample."""
    return StepShape([StepRow(context, 1, 1)] * batch)


def prefill_step(num_computed: int, num_tokens: int) -> StepShape:
    """One request's piece of a prompt, its last one."""
    return StepShape([StepRow(num_computed, num_tokens, 1)])


def ridge_batch(bounds: OpBounds) -> float | None:
    """Sequences in a decode step from which on its products are bound by compute; None beyond 4,096.

    Interpolated between the whole numbers where the two terms change places. Below it another sequence is
    nearly free: the weights are read once for all (Williams et al. 2009; Pope et al. 2022, §2).
    """
    before = 0.0
    for batch in range(1, MAX_BATCH + 1):
        compute_s, memory_s = bounds.matrix_terms(batch)
        excess = compute_s / memory_s - 1
        if excess >= 0:
            return float(batch) if batch == 1 else batch - excess / (excess - before)
        before = excess
    return None


def ridge_prompt_tokens(bounds: OpBounds) -> int | None:
    """Tokens of a prompt from which on its products are bound by compute; None beyond 4,096."""

    def excess(num_tokens: int) -> float:
        terms = bounds.terms(prefill_step(0, num_tokens))
        return sum(terms[op][0] - terms[op][1] for op in MATRIX_OPS)

    return _first(excess, MAX_BATCH)


def attention_context(predictor: Predictor, batch: int) -> int | None:
    """Context from which on attention takes more of a decode step than all the rest; None beyond 2²⁰."""

    def excess(context: int) -> float:
        return _attention_excess(predictor, decode_step(batch, context))

    return _first(excess, MAX_CONTEXT)


def attention_prompt_tokens(predictor: Predictor, chunk: int) -> int | None:
    """Tokens before a chunk of a prompt from which on its attention takes more than all the rest."""

    def excess(num_computed: int) -> float:
        return _attention_excess(predictor, prefill_step(num_computed, chunk))

    return _first(excess, MAX_CONTEXT)


def kv_context(model: ModelShape, batch: int) -> float:
    """Tokens per sequence at which a decode step reads as many bytes of K and V as of weights."""
    return model.weights_bytes / (batch * model.kv_shape.bytes_per_token)


def saturation_batch(rest_s: Callable[[int], float], *, each_s: float, share: float) -> int | None:
    """Sequences from which on what takes `each_s` seconds a sequence has `share` of a decode step's time.

    `rest_s` gives the seconds of everything else by number of sequences. None beyond 4,096.
    """

    def excess(batch: int) -> float:
        return each_s * batch - share * (rest_s(batch) + each_s * batch)

    return _first(excess, MAX_BATCH)


def stalling_chunk(predictor: Predictor, batch: int, context: int) -> int | None:
    """Tokens of a prompt that make a decode step they share take twice as long; None beyond 4,096."""
    rows = decode_step(batch, context).rows
    alone_s = predictor.predict(StepShape(rows)).total_s

    def excess(num_tokens: int) -> float:
        shared = StepShape([*rows, StepRow(0, num_tokens, 1)])
        return predictor.predict(shared).total_s - 2 * alone_s

    return _first(excess, MAX_BATCH)


def requests_per_s(
    predictor: Predictor, batch: int, *, num_prompt_tokens: int, num_output_tokens: int
) -> float:
    """Requests that `batch` sequences kept running finish in a second.

    A request takes its own prefill and a share 1 / batch of the decode steps, at its mean context.
    """
    prefill_s = predictor.predict(prefill_step(0, num_prompt_tokens)).total_s
    context = num_prompt_tokens + num_output_tokens // 2
    decode_s = predictor.predict(decode_step(batch, context)).total_s
    return 1 / (prefill_s + (num_output_tokens - 1) * decode_s / batch)


def _attention_excess(predictor: Predictor, step: StepShape) -> float:
    op_s = predictor.predict(step).op_s
    rest = sum(seconds for op, seconds in op_s.items() if op not in ("attention", STEP_OVERHEAD))
    return op_s["attention"] - rest


def _first(excess: Callable[[int], float], most: int) -> int | None:
    """The least whole number ≥ 1 at which `excess` is ≥ 0, by doubling and halving; None beyond `most`.

    `excess` is taken to cross zero once.
    """
    high = 1
    while excess(high) < 0:
        high *= 2
        if high > most:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if excess(middle) >= 0 else (middle, high)
    return high
