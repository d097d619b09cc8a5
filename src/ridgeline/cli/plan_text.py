"""A plan as text: what memory holds, how fast it goes, which resource binds, what to set and why."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from ridgeline.cli.plan_machine import Machine, size
from ridgeline.cli.plan_subject import Subject
from ridgeline.perf.hardware import UNCERTAIN
from ridgeline.perf.plan import Limit, Plan
from ridgeline.perf.quantities import milliseconds
from ridgeline.perf.roofline import ridge_intensity
from ridgeline.perf.serving_plan import ServingPlan

_LIMIT_WORDS = {
    Limit.WEIGHTS: "the weights don't fit",
    Limit.MEMORY: "weights and KV cache together don't fit",
    Limit.KV_CACHE: "the KV cache",
    Limit.MAX_NUM_SEQS: "max_num_seqs",
}


def memory_lines(subject: Subject, made: Plan, machine: Machine) -> Iterator[str]:
    """Weights, KV cache and contexts, with every factor."""
    shape, cache, block_size = made.shape, made.cache, made.settings.block_size
    weights = size(made.weights_bytes) if made.weights_bytes is not None else subject.note
    yield f"{subject.name}"
    if subject.note and made.weights_bytes is not None:
        yield f"  {subject.note}"
    yield f"  weights       {weights}"
    yield f"  KV per token  {shape.formula}"
    yield f"  KV block      {shape.block_formula(block_size)}"
    yield (
        f"  KV cache      {cache.num_blocks:,} blocks × {cache.block_bytes:,} B = "
        f"{size(cache.kv_cache_bytes)}: {cache.max_cached_tokens:,} tokens"
    )
    yield f"  memory        {machine.memory_words}"
    yield f"  left          {size(made.memory_left_bytes)} beside weights and KV cache"
    if cache.max_model_len < made.settings.max_model_len:
        yield (
            f"  max_model_len {cache.max_model_len:,} instead of {made.settings.max_model_len:,}: "
            f"the KV cache holds no more"
        )
    yield from ("", "   context  blocks  bytes of a request  slack  requests in cache  runs out first")
    for request in made.requests:
        yield (
            f"{request.num_tokens:10,}  {request.num_blocks:6,}  {request.allocated_bytes:18,}  "
            f"{request.slack_tokens:5,}  {made.max_concurrency(request):17,}  "
            f"{_LIMIT_WORDS[made.first_limit(request)]}"
        )
    yield ""
    yield from (f"  {request.num_tokens:,}: {request.formula}" for request in made.requests)


def show_serving(serving: ServingPlan, console: Console) -> None:
    """Print limits, batches, the resource that binds, and the advice."""
    for line in _limit_lines(serving):
        _print(console, line)
    console.print(_batches(serving))
    for line in _verdict_lines(serving):
        _print(console, line)
    table = Table("setting", "value", "why", title="recommended", title_justify="left")
    for name, advice in serving.advice.items():
        value = "–" if advice.value is None else f"{advice.value:,}"
        table.add_row(name, value, advice.reason)
    console.print(table)


def _limit_lines(serving: ServingPlan) -> Iterator[str]:
    profile = serving.serving.profile
    yield ""
    yield f"{profile.name}, ceilings: {profile.source}"
    for note in profile.notes:
        yield f"  · {note}"
    if not profile.is_stable:
        yield f"  {UNCERTAIN}"
    bandwidth = profile.dram_bytes_per_s
    yield (
        f"  decode limit  {serving.serving.decode_tok_s_limit:,.1f} tok/s of one request: "
        f"a step reads {size(serving.serving.step_weight_bytes)} of weights at {bandwidth / 1e9:,.1f} GB/s"
    )
    prefill = serving.serving.prefill_tok_s_limit
    if prefill is None:
        yield "  prefill limit unknown: no compute peak is published; all times below are memory's alone"
    else:
        yield f"  prefill limit {prefill:,.0f} tok/s in steps of 512 tokens"
    yield f"  ridge         {_ridge_words(serving)}"


def _ridge_words(serving: ServingPlan) -> str:
    profile, quant_type = serving.serving.profile, serving.serving.model.main_format
    intensity = ridge_intensity(profile, quant_type)
    if intensity is None:
        return f"unknown without a peak of products with {quant_type} weights"
    words = f"{intensity:,.1f} FLOPs a byte with {quant_type} weights; "
    if serving.ridge_batch is None:
        return words + "no batch up to 4,096 reaches it"
    return words + f"products wait for arithmetic from a batch of {serving.ridge_batch:,.1f} on"


def _batches(serving: ServingPlan) -> Table:
    workload = serving.serving.workload
    kind = "least times of a data sheet" if serving.serving.is_least_time else "predicted"
    title = f"decoding at {workload.mean_context:,} tokens of context, {kind}"
    table = Table(title=title, title_justify="left")
    for column in ("batch", "step", "decode tok/s", "TPOT *", "requests/s", "bound"):
        table.add_column(column, justify="right")
    for point in serving.points():
        is_advised = point.batch == serving.max_num_seqs.value
        table.add_row(
            f"{point.batch:,}",
            milliseconds(point.step_s),
            f"{point.decode_tok_s:,.1f}",
            milliseconds(point.tpot_s),
            f"{point.requests_per_s:.3g}",
            point.bound,
            style="bold" if is_advised else "",
        )
    return table


def _verdict_lines(serving: ServingPlan) -> Iterator[str]:
    workload, first = serving.serving.workload, serving.first_bound
    yield "  * with the prompts of the requests that follow computed in between"
    yield f"  binds first   {first.resource}: {first.reason}"
    if serving.slo_batch is not None and workload.tpot_s is not None:
        words = f"{serving.slo_batch:,} requests" if serving.slo_batch else "not even one request"
        yield f"  TPOT          {words} within {milliseconds(workload.tpot_s)}"
    yield f"  TTFT          {_ttft_words(serving)}"
    if workload.rate_per_s is not None:
        yield f"  rate          {_rate_words(serving, workload.rate_per_s)}"


def _ttft_words(serving: ServingPlan) -> str:
    workload, ttft_s = serving.serving.workload, serving.ttft_s
    if ttft_s is None:
        return "unknown without a compute peak"
    words = f"{milliseconds(ttft_s)} for {workload.input_len:,} tokens with nobody else there"
    if workload.ttft_s is None:
        return words
    return f"{words}: {'within' if ttft_s <= workload.ttft_s else 'misses'} {milliseconds(workload.ttft_s)}"


def _rate_words(serving: ServingPlan, rate: float) -> str:
    best, needed = serving.best_requests_per_s, serving.needed_batch
    if best is None:
        return "no request fits"
    if needed is None or needed > (serving.max_num_seqs.value or 0):
        return f"{rate:g} requests/s are too many: at most {best:.3g} with the settings below"
    return f"{rate:g} requests/s keep {needed:,} running; at most {best:.3g} with the settings below"


def _print(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
