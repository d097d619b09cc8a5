"""`ridgeline bench`: measurements."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import App, Parameter

from ridgeline.bench.offline import DEFAULT_KEYS, run_benchmark
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
    repeats: int = 3,
    json: JsonTarget = None,
    engine: EngineOptions = EngineOptions(),  # noqa: B008 - frozen
) -> None:
    """Measure loading, prefill and decode of one model, with nothing else running.

    Example: ridgeline bench engine --only prefill_512_tok_s,decode_b1_tok_s

    Parameters
    ----------
    only: tuple[str, ...]
        Keys to measure, separated by commas; by default all of them.
    repeats: int
        Samples per key.
    json: str
        Write the result as JSON to this file; - prints it.
    """
    check_target(json)
    keys = [key for group in only for key in group.split(",")] or list(DEFAULT_KEYS)
    document = run_benchmark(
        engine.load,
        keys=keys,
        repeats=max(repeats, 1),
        report=lambda line: print(line, file=sys.stderr if json == "-" else sys.stdout),
    )
    if json is not None:
        write_json(json, document)
