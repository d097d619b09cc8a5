"""`ridgeline plan`: memory, speed and settings of a model before it is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from ridgeline.cli.hardware_text import show_hardware
from ridgeline.cli.json_output import JsonTarget, check_target, write_json
from ridgeline.cli.options import Flag
from ridgeline.cli.plan_machine import Machine, find_machine
from ridgeline.cli.plan_subject import Subject, find_subject
from ridgeline.cli.plan_text import memory_lines, show_serving
from ridgeline.config.checks import check_at_least
from ridgeline.errors import ConfigError
from ridgeline.metrics.slo import parse_slos
from ridgeline.perf.kv_sizing import KVCacheSettings
from ridgeline.perf.plan import Plan, make_plan
from ridgeline.perf.serving_model import ServingModel, Workload
from ridgeline.perf.serving_plan import ServingPlan

_DEFAULT_CONTEXT_LEN = 8192
_DEFAULT_INPUT_LEN, _DEFAULT_OUTPUT_LEN = 512, 128
_SLOS = ("ttft", "tpot")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Which machine and which settings to plan for."""

    context: Annotated[tuple[int, ...], Parameter(negative="", consume_multiple=True)] = ()
    """Tokens per request; several may follow. By default a few up to the longest."""
    block_size: int = 32
    """Tokens per KV block."""
    kv_cache_bytes: int | None = None
    """Bytes of K and V of all layers; by default the engine's own rule, or what a named machine has left."""
    max_num_seqs: int = 32
    """Most requests running at once."""
    max_model_len: int | None = None
    """Most tokens of one request; by default the model's own, or the longest --context."""
    memory_bytes: int | None = None
    """Plan for a machine with this much memory instead of its own."""
    hardware: str | None = None
    """A machine by name, from its data sheet; by default this machine, measured."""
    num_threads: int | None = None
    """Threads of this machine; by default as many as the engine takes."""
    weights: str | None = None
    """Plan for weights of this quant type, as q4_0, instead of the model's own."""

    def settings(self, subject: Subject, machine: Machine) -> KVCacheSettings:
        """The settings that size the cache.

        Raises:
            ConfigError: an option is out of range, or beyond the model's own context.
        """
        for name in ("block_size", "max_num_seqs", "max_model_len", "kv_cache_bytes", "memory_bytes"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 1)
        known = subject.context_len
        for name, tokens in (("max_model_len", self.max_model_len), *(("context", c) for c in self.context)):
            if tokens is not None and known is not None and tokens > known:
                raise ConfigError(name, tokens, f"{subject.name} was made for {known}")
        default = known or max(self.context, default=_DEFAULT_CONTEXT_LEN)
        return KVCacheSettings(
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len or default,
            kv_cache_bytes=self.kv_cache_bytes or self._named_kv_bytes(subject, machine),
        )

    def _named_kv_bytes(self, subject: Subject, machine: Machine) -> int | None:
        """What a machine by name has left for K and V; None leaves it to the engine's own rule."""
        left = machine.kv_memory_bytes(subject.weights_bytes)
        is_enough = left >= subject.kv.block_bytes(self.block_size)
        return left if machine.entry is not None and is_enough else None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """What the requests are like, and what they may take."""

    input_len: int | None = None
    """Tokens of a prompt; 512 by default."""
    output_len: int | None = None
    """Tokens of an answer; 128 by default."""
    rate: float | None = None
    """Requests that arrive a second."""
    goodput: Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=True)] = ()
    """Limits as NAME:MILLISECONDS, several words or repeated: ttft, tpot."""

    def workload(self, max_model_len: int) -> Workload:
        """The same in seconds; lengths that were not given shrink to fit `max_model_len`.

        Raises:
            ConfigError: a length, rate or limit out of range, or together longer than a request can be.
        """
        slos = parse_slos(self.goodput)
        unknown = [name for name in slos if name not in _SLOS]
        if unknown:
            raise ConfigError("goodput", unknown[0], f"a plan knows {' and '.join(_SLOS)}")
        output_len = self.output_len
        if output_len is None:
            output_len = max(min(_DEFAULT_OUTPUT_LEN, max_model_len - (self.input_len or 1)), 1)
        input_len = self.input_len
        if input_len is None:
            input_len = max(min(_DEFAULT_INPUT_LEN, max_model_len - output_len), 1)
        workload = Workload(
            input_len=input_len,
            output_len=output_len,
            rate_per_s=self.rate,
            ttft_s=slos.get("ttft"),
            tpot_s=slos.get("tpot"),
        )
        if workload.num_tokens > max_model_len:
            remedy = f"with output_len={output_len} that is {workload.num_tokens}, more than {max_model_len}"
            raise ConfigError("input_len", input_len, remedy)
        return workload


def plan(
    model: str = "smollm2-135m-instruct",
    *,
    options: PlanOptions = PlanOptions(),
    workload: WorkloadOptions = WorkloadOptions(),
    list_hardware: Annotated[bool, Flag] = False,
    json: JsonTarget = None,
) -> None:
    """Show what a model takes in memory, how fast it can be, and which settings fit, without loading it.

    Example: ridgeline plan llama-3-8b --hardware h100 --input-len 1024 --output-len 256 --goodput tpot:20

    Parameters
    ----------
    model: str
        Catalogue name, name of a known model (llama-3-8b, qwen2.5-7b …), hf: name, path of a .gguf file
        (only its header is read), or path of a .json file with dimensions: layers, hidden, heads, kv_heads,
        head_dim, ffn, vocab, tied, weight_type, window, window_layers.
    list_hardware: bool
        List the machines that --hardware knows, and end.
    json: str
        Write the plan as JSON to this file; - prints it in place of the text.
    """
    console = Console()
    if list_hardware:
        show_hardware(console)
        return
    check_target(json)
    subject = find_subject(model)
    if options.weights is not None:
        subject = subject.with_weights(options.weights)
    machine = find_machine(options.hardware, options.memory_bytes)
    settings = options.settings(subject, machine)
    made = make_plan(
        subject.kv,
        settings,
        weights_bytes=subject.weights_bytes,
        memory_bytes=machine.memory_bytes,
        contexts=options.context,
    )
    wanted = workload.workload(settings.max_model_len)
    serving = _serving(subject, machine, wanted, options)
    if json is not None:
        write_json(json, _document(made, serving))
    if json != "-":
        print("\n".join(memory_lines(subject, made, machine)))
        if serving is None:
            print(f"\nLimits of speed need all dimensions, and ceilings: {subject.note}.")
        else:
            show_serving(serving, console)


def _serving(
    subject: Subject, machine: Machine, workload: Workload, options: PlanOptions
) -> ServingPlan | None:
    """The speed's part; None where the model's dimensions don't tell."""
    if subject.model is None:
        return None
    kv_memory_bytes = options.kv_cache_bytes or machine.kv_memory_bytes(subject.weights_bytes)
    return ServingPlan(
        ServingModel(subject.model, machine.profile(options.num_threads), workload),
        kv_memory_bytes=kv_memory_bytes,
        block_size=options.block_size,
    )


def _document(made: Plan, serving: ServingPlan | None) -> dict[str, object]:
    document = dict(made.document())
    if serving is None:
        return document
    limits = {
        "decode_tok_s_limit": serving.serving.decode_tok_s_limit,
        "prefill_tok_s_limit": serving.serving.prefill_tok_s_limit,
        "ridge_batch": serving.ridge_batch,
    }
    return document | limits | serving.document()
