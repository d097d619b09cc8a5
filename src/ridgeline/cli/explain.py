"""`ridgeline explain`: one request, told step by step."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from ridgeline.bench.calibrate import stored_or_short
from ridgeline.cli.json_output import JsonTarget, check_target, write_json
from ridgeline.cli.options import EngineOptions, Flag, SamplingOptions
from ridgeline.cli.report import request_document
from ridgeline.cli.text_files import check_writable
from ridgeline.config.checks import check_at_least
from ridgeline.config.env import home_dir
from ridgeline.config.machine import cpu_limits
from ridgeline.errors import ConfigError
from ridgeline.explain.console_report import print_explanation
from ridgeline.explain.explanation import explanation
from ridgeline.explain.prompts import prompt_ids, prompt_ids_of_length
from ridgeline.explain.recorder import Recorder, Tokenize
from ridgeline.llm import LLM
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.sampling_params import SamplingParams


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """Which regime to run, and what to make of it."""

    batch: int = 1
    """Requests alike that run together; the last one is explained."""
    context: int | None = None
    """Tokens of the prompt: the text is repeated up to this length."""
    raw: Annotated[bool, Flag] = False
    """Continue the text as it is, without the model's chat template."""
    html: Path | None = None
    """Write a page with plots to this file."""


def explain(
    prompt: Annotated[str, Parameter(allow_leading_hyphen=True)] = "Why is the sky blue?",
    *,
    options: ExplainOptions = ExplainOptions(),
    json: JsonTarget = None,
    sampling: SamplingOptions = SamplingOptions(),  # noqa: B008 - frozen
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - frozen
) -> None:
    """Run a request and tell its path: what each step computed and moved, what it took, and why.

    Example: ridgeline explain "Why is the sky blue?" --html why.html

    Parameters
    ----------
    prompt: str
        The text; - reads it from stdin.
    json: str
        Write the explanation as JSON to this file; - prints it in place of the text.
    """
    params = sampling.params()
    check_target(json)
    check_writable(html=options.html)
    document = _explained(sys.stdin.read() if prompt == "-" else prompt, params, options, engine)
    if json is not None:
        write_json(json, document)
    if json != "-":
        print_explanation(document, Console(highlight=False))


def _explained(
    text: str, params: SamplingParams, options: ExplainOptions, engine: EngineOptions
) -> dict[str, Any]:
    """Load the model, run, explain."""
    check_at_least("batch", options.batch, 1)
    if options.context is not None:
        check_at_least("context", options.context, 1)
    if engine.executor != "native":
        raise ConfigError(
            "executor", engine.executor, "only the native one has measured ceilings; leave it out"
        )
    profile = _profile(engine.num_threads)
    with replace(engine, max_num_seqs=max(engine.max_num_seqs, options.batch)).load() as llm:
        tokenize = _tokenize(llm, text, options)
        parts = llm.parts
        recorder = Recorder(parts.engine, parts.input_processor, parts.tokenizer)
        # The first request of a process also compiles the template and starts threads.
        recorder.run(lambda: tokenize()[-1:], replace(params, max_tokens=2, min_tokens=0))
        run = recorder.run(tokenize, params, num_requests=options.batch)
        return {**request_document(run.output, parts), **explanation(parts, profile, run, params)}


def _profile(num_threads: int | None) -> HardwareProfile:
    return stored_or_short(
        home_dir(),
        num_threads or cpu_limits().num_threads,
        report=lambda line: print(f"ridgeline: {line}", file=sys.stderr),
    )


def _tokenize(llm: LLM, text: str, options: ExplainOptions) -> Tokenize:
    """How the prompt becomes ids. One of a given length is made before, and not timed."""
    tokenizer, context = llm.tokenizer, options.context
    if context is None:
        return lambda: prompt_ids(tokenizer, text, raw=options.raw)
    ids = prompt_ids_of_length(tokenizer, text, context, raw=options.raw)
    return lambda: ids
