"""`ridgeline plan`: memory and limits of a model before it is run."""

from __future__ import annotations

import json as json_module
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.json_output import JsonTarget, write_json
from ridgeline.config.checks import check_at_least
from ridgeline.config.env import home_dir
from ridgeline.config.machine import MemoryLimits, memory_limits
from ridgeline.errors import ConfigError
from ridgeline.hub.catalogue import CATALOGUE
from ridgeline.hub.store import resolve_model
from ridgeline.model.header import read_model_header
from ridgeline.model.kv_cache import kv_shape
from ridgeline.perf.kv_memory import KVShape
from ridgeline.perf.kv_sizing import KVCacheSettings
from ridgeline.perf.model_dims import model_dims
from ridgeline.perf.plan import Limit, Plan, make_plan

_KV_ITEMSIZE = 2  # float16
_DEFAULT_CONTEXT_LEN = 8192
_LIMIT_WORDS = {
    Limit.WEIGHTS: "the weights don't fit",
    Limit.MEMORY: "weights and KV cache together don't fit",
    Limit.KV_CACHE: "the KV cache",
    Limit.MAX_NUM_SEQS: "max_num_seqs",
}


@dataclass(frozen=True)
class _Subject:
    """What a plan is made for; `note` says why `weights_bytes` is None, or is empty."""

    name: str
    shape: KVShape
    weights_bytes: int | None
    context_len: int | None
    note: str = ""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Which machine and which settings to plan for."""

    context: Annotated[tuple[int, ...], Parameter(negative="", consume_multiple=True)] = ()
    """Tokens per request; several may follow. By default a few up to the longest."""
    block_size: int = 32
    """Tokens per KV block."""
    kv_cache_bytes: int | None = None
    """Bytes of K and V of all layers; by default at most a quarter of the available memory."""
    max_num_seqs: int = 32
    """Most requests running at once."""
    max_model_len: int | None = None
    """Most tokens of one request; by default the model's own, or the longest --context."""
    memory_bytes: int | None = None
    """Plan for a machine with this much memory instead of this one."""

    def settings(self, subject: _Subject) -> KVCacheSettings:
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
            kv_cache_bytes=self.kv_cache_bytes,
        )


def plan(
    *,
    model: str = "smollm2-135m-instruct",
    options: PlanOptions = PlanOptions(),
    json: JsonTarget = None,
) -> None:
    """Show what a model takes in memory and how many requests fit, without loading it.

    Example: ridgeline plan --context 1024 8192

    Parameters
    ----------
    model: str
        Catalogue name, hf: name, path of a .gguf file (only its header is read), or path of a .json file
        with dimensions: layers, hidden, heads, kv_heads, head_dim, ffn, vocab, tied, weight_type, window,
        window_layers.
    json: str
        Write the plan as JSON to this file; - prints it in place of the text.
    """
    subject = _subject(model)
    memory = memory_limits() if options.memory_bytes is None else None
    made = make_plan(
        subject.shape,
        options.settings(subject),
        weights_bytes=subject.weights_bytes,
        memory_bytes=memory.available_bytes if memory is not None else options.memory_bytes or 0,
        contexts=options.context,
    )
    if json is not None:
        write_json(json, made.document())
    if json != "-":
        print("\n".join(_lines(subject, made, memory)))


def _subject(model: str) -> _Subject:
    if model.lower().endswith(".json"):
        return _subject_of_dims(Path(model))
    path = resolve_model(model, home_dir())
    header = read_model_header(path)
    name = model if model in CATALOGUE else path.stem
    shape = kv_shape(header.config, itemsize=_KV_ITEMSIZE)
    return _Subject(name, shape, header.weights_bytes, header.config.context_len)


def _subject_of_dims(path: Path) -> _Subject:
    try:
        values = json_module.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("model", str(path), f"can't be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError("model", str(path), f"is not JSON: {error}") from None
    dims = model_dims(values)
    missing = ", ".join(dims.missing_for_weights)
    return _Subject(
        path.stem,
        dims.kv_shape(_KV_ITEMSIZE),
        dims.weights_bytes(),
        None,
        f"unknown without {missing}" if missing else "",
    )


def _lines(subject: _Subject, made: Plan, memory: MemoryLimits | None) -> list[str]:
    shape, cache, block_size = made.shape, made.cache, made.settings.block_size
    weights = f"{_size(made.weights_bytes)}" if made.weights_bytes is not None else subject.note
    lines = [
        f"{subject.name}",
        f"  weights       {weights}",
        f"  KV per token  {shape.formula}",
        f"  KV block      {shape.block_formula(block_size)}",
        f"  KV cache      {cache.num_blocks:,} blocks × {cache.block_bytes:,} B = "
        f"{_size(cache.kv_cache_bytes)}: {cache.max_cached_tokens:,} tokens",
        f"  memory        {_memory_words(made, memory)}",
        f"  left          {_size(made.memory_left_bytes)} beside weights and KV cache",
    ]
    if cache.max_model_len < made.settings.max_model_len:
        lines.append(
            f"  max_model_len {cache.max_model_len:,} instead of {made.settings.max_model_len:,}: "
            f"the KV cache holds no more"
        )
    lines += ["", "   context  blocks  bytes of a request  slack  requests in cache  runs out first"]
    for request in made.requests:
        lines.append(
            f"{request.num_tokens:10,}  {request.num_blocks:6,}  {request.allocated_bytes:18,}  "
            f"{request.slack_tokens:5,}  {made.max_concurrency(request):17,}  "
            f"{_LIMIT_WORDS[made.first_limit(request)]}"
        )
    lines += ["", *(f"  {request.num_tokens:,}: {request.formula}" for request in made.requests)]
    return [
        *lines,
        "",
        "Limits of speed need measured ceilings of this machine; there are none yet.",
    ]


def _memory_words(made: Plan, memory: MemoryLimits | None) -> str:
    if memory is None:
        return f"{_size(made.memory_bytes)}, as --memory-bytes says"
    words = f"{_size(made.memory_bytes)} available of {_size(memory.machine_bytes)}"
    if memory.cgroup_limit_bytes is not None:
        words += f"; the cgroup's limit is {_size(memory.cgroup_limit_bytes)}"
    return words


def _size(num_bytes: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6)):
        if abs(num_bytes) >= scale:
            return f"{num_bytes:,} B ({num_bytes / scale:.1f} {unit})"
    return f"{num_bytes:,} B"
