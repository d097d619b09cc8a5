"""`ridgeline bench`: measurements."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from ridgeline.bench.keys import DEFAULT_KEYS
from ridgeline.bench.offline import run_benchmark
from ridgeline.bench.peers import find_peers
from ridgeline.bench.results import render_results
from ridgeline.cli.json_output import JsonTarget, check_target, write_json
from ridgeline.cli.options import EngineOptions


def new_app() -> App:
    """The `bench` group."""
    app = App(name="bench", help="Measure speeds.")
    app.command(engine)
    return app


def engine(
    *,
    only: Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=False)] = (),
    repeats: int = 5,
    peers: Path | None = None,
    json: JsonTarget = None,
    markdown: Path | None = None,
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - frozen
) -> None:
    """Measure loading, prefill and decode of one model, with nothing else running and no prefix cache.

    Example: ridgeline bench engine --only prefill_512_tok_s,decode_b1_tok_s

    Parameters
    ----------
    only: tuple[str, ...]
        Keys to measure, separated by commas; by default all of them.
    repeats: int
        Samples per key.
    peers: Path
        Directory of other engines' environments (venv-llama, venv-hf). After each sample of ours each of
        them is measured on the same file.
    json: str
        Write the result as JSON to this file; - prints it.
    markdown: Path
        Write it as a page to this file.
    """
    check_target(json)
    check_target(str(markdown) if markdown is not None else None)
    keys = [key for group in only for key in group.split(",")] or list(DEFAULT_KEYS)
    document = run_benchmark(
        replace(engine, enable_prefix_caching=False).load,
        keys=keys,
        repeats=max(repeats, 1),
        report=lambda line: print(line, file=sys.stderr if json == "-" else sys.stdout),
        peers=find_peers(peers) if peers is not None else (),
    )
    if json is not None:
        write_json(json, document)
    if markdown is not None:
        markdown.write_text(render_results(document, shlex.join(["ridgeline", *sys.argv[1:]])))
