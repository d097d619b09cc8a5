"""`ridgeline bench`: measurements."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from ridgeline.bench.keys import DEFAULT_KEYS
from ridgeline.bench.offline import run_benchmark
from ridgeline.bench.peers import find_peers
from ridgeline.bench.results import render_results
from ridgeline.cli import bench_capacity, bench_compare, bench_report, bench_serve
from ridgeline.cli.json_output import JsonTarget, check_target, write_json
from ridgeline.cli.options import EngineOptions, Repeated


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What to measure, how often, and beside whom."""

    only: Annotated[tuple[str, ...], Repeated] = ()
    """Keys to measure, separated by commas; by default all of them."""
    repeats: int = 5
    """Samples per key."""
    peers: Path | None = None
    """Directory of other engines' environments (venv-llama, venv-hf), to measure them on the same file."""
    rounds: int = 3
    """How often a key goes round with peers: a share of our samples, then one of each of theirs."""


def new_app() -> App:
    """The `bench` group."""
    app = App(name="bench", help="Measure speeds.")
    app.command(engine)
    app.command(bench_serve.serve)
    app.command(bench_report.report)
    app.command(bench_compare.compare)
    app.command(bench_capacity.capacity)
    return app


def engine(
    *,
    json: JsonTarget = None,
    markdown: Path | None = None,
    measure: MeasureOptions = MeasureOptions(),
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - frozen
) -> None:
    """Measure loading, prefill and decode, each from an empty prefix cache, with nothing else running.

    Example: ridgeline bench engine --only prefill_512_tok_s,decode_b1_tok_s

    Parameters
    ----------
    json: str
        Write the result as JSON to this file; - prints it.
    markdown: Path
        Write it as a page to this file.
    """
    check_target(json)
    check_target(str(markdown) if markdown is not None else None)
    peers = find_peers(measure.peers) if measure.peers is not None else []
    document = run_benchmark(
        engine.load,
        keys=[key for group in measure.only for key in group.split(",")] or list(DEFAULT_KEYS),
        repeats=max(measure.repeats, 1),
        report=lambda line: print(line, file=sys.stderr if json == "-" else sys.stdout),
        peers=peers,
        rounds=max(measure.rounds, 1) if peers else 1,
    )
    if json is not None:
        write_json(json, document)
    if markdown is not None:
        # Where things lie on this machine is nobody's business.
        names = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
        markdown.write_text(render_results(document, shlex.join(["ridgeline", *names])))
