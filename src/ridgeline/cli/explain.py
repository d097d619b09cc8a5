"""`ridgeline explain`: one request, told step by step."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from ridgeline.bench.calibrate import keep_or_tell, stored_or_short
from ridgeline.cli.json_output import JsonTarget, check_target, write_json
from ridgeline.cli.options import EngineOptions, Flag, SamplingOptions
from ridgeline.cli.report import request_document
from ridgeline.cli.text_files import check_writable, read_lines, write_text
from ridgeline.config.checks import check_at_least
from ridgeline.config.env import home_dir
from ridgeline.config.machine import cpu_limits
from ridgeline.dashboard.explain_page import explain_page
from ridgeline.errors import ConfigError
from ridgeline.explain.compare import check_explanation, comparison
from ridgeline.explain.console_report import print_comparison, print_explanation
from ridgeline.explain.explanation import explanation
from ridgeline.explain.prompts import prompt_ids, prompt_ids_of_length
from ridgeline.explain.questions import what_if_document, what_ifs
from ridgeline.explain.raised_ceilings import new_notes, raised_by_run
from ridgeline.explain.recorder import Recorder, Tokenize
from ridgeline.llm import LLM
from ridgeline.perf.hardware import HardwareProfile
from ridgeline.perf.what_if_changes import parse_changes
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
    what_if: Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=True)] = ()
    """Questions as batch=64, weights=q4_0, kv_dtype=int8, bandwidth=2x, hardware=h100; several may follow."""
    compare: tuple[Path, Path] | None = None
    """Two files that --json wrote: tell what differs and why, and run nothing."""
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

    Example: ridgeline explain "Why is the sky blue?" --html why.html --what-if batch=8 hardware=h100

    Parameters
    ----------
    prompt: str
        The text; - reads it from stdin.
    json: str
        Write the explanation as JSON to this file; - prints it in place of the text.
    """
    check_target(json)
    check_writable(html=options.html)
    console = Console(highlight=False)
    if options.compare is not None:
        if options.html is not None:
            raise ConfigError("html", str(options.html), "a comparison is text or --json; leave --html out")
        differences = comparison(*map(_read_explanation, options.compare))
        if json is not None:
            write_json(json, differences)
        if json != "-":
            print_comparison(differences, console)
        return
    text = sys.stdin.read() if prompt == "-" else prompt
    document = _explained(text, sampling.params(), options, engine)
    if options.html is not None:
        write_text("html", options.html, explain_page(document))
    if json is not None:
        write_json(json, document)
    if json != "-":
        print_explanation(document, console)


def _explained(
    text: str, params: SamplingParams, options: ExplainOptions, engine: EngineOptions
) -> dict[str, Any]:
    """Load the model, run, explain; then ask, and check on engines of their own."""
    check_at_least("batch", options.batch, 1)
    if options.context is not None:
        check_at_least("context", options.context, 1)
    if engine.executor != "native":
        raise ConfigError(
            "executor", engine.executor, "only the native one has measured ceilings; leave it out"
        )
    changes = parse_changes(options.what_if)
    profile = _profile(engine.num_threads)
    with replace(engine, max_num_seqs=max(engine.max_num_seqs, options.batch)).load() as llm:
        tokenize = _tokenize(llm, text, options)
        parts = llm.parts
        recorder = Recorder(parts.engine, parts.input_processor, parts.tokenizer)
        # The first request of a process also compiles the template and starts threads.
        recorder.run(lambda: tokenize()[-1:], replace(params, max_tokens=2, min_tokens=0))
        run = recorder.run(tokenize, params, num_requests=options.batch)
        measured, profile = profile, raised_by_run(parts.model_shape, profile, run)
        if profile is not measured:
            keep_or_tell(home_dir(), profile, _report)
        document = {
            **request_document(run.output, parts),
            **explanation(parts, profile, run, params),
            "raised_ceilings": new_notes(measured, profile),
        }
        answers = what_ifs(parts.model_shape, profile, run, changes) if changes else []

    def open_llm(num_threads: int, num_requests: int) -> LLM:
        seats = max(engine.max_num_seqs, num_requests)
        return replace(engine, num_threads=num_threads, max_num_seqs=seats).load()

    document["what_if"] = [what_if_document(phase, each, text, open_llm) for phase, each in answers]
    return document


def _read_explanation(path: Path) -> Mapping[str, Any]:
    try:
        document = json_module.loads("\n".join(read_lines("compare", path)))
    except (ValueError, RecursionError) as error:
        raise ConfigError("compare", str(path), f"is not JSON: {error}") from None
    return check_explanation("compare", str(path), document)


def _profile(num_threads: int | None) -> HardwareProfile:
    return stored_or_short(
        home_dir(),
        num_threads or cpu_limits().num_threads,
        report=_report,
    )


def _report(line: str) -> None:
    print(f"ridgeline: {line}", file=sys.stderr)


def _tokenize(llm: LLM, text: str, options: ExplainOptions) -> Tokenize:
    """How the prompt becomes ids. One of a given length is made before, and not timed."""
    tokenizer, context = llm.tokenizer, options.context
    if context is None:
        return lambda: prompt_ids(tokenizer, text, raw=options.raw)
    ids = prompt_ids_of_length(tokenizer, text, context, raw=options.raw)
    return lambda: ids
