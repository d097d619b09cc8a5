"""`ridgeline bench compare`: two load runs against each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ridgeline.cli.bench_report import read_results
from ridgeline.cli.json_output import JsonTarget, check_target, write_json
from ridgeline.cli.load_options import Words
from ridgeline.errors import ConfigError
from ridgeline.loadgen.compare import CompareSettings, compare_runs, comparison_lines
from ridgeline.loadgen.stored_result import StoredRun
from ridgeline.metrics.slo import parse_slos


def compare(
    a: Path,
    b: Path,
    *,
    goodput: Annotated[tuple[str, ...], Words] = (),
    confidence: float = 0.95,
    seed: int = 0,
    json: JsonTarget = None,
) -> None:
    """Differences of two results of bench serve --save-detailed, each with a bootstrap interval.

    Where an interval holds 0, no difference is shown. Runs of different loads or machines are named.

    Example: ridgeline bench compare before.json after.json

    Parameters
    ----------
    a: Path
        The first result.
    b: Path
        The second; differences are b − a.
    goodput: str
        SLOs as NAME:MILLISECONDS for both, in place of their own.
    confidence: float
        Level of the intervals.
    seed: int
        Seed of the resamples.
    json: str
        Write the comparison as JSON to this file; - prints it in place of the table.
    """
    check_target(json)
    settings = CompareSettings(confidence=confidence, seed=seed, slos_s=parse_slos(goodput))
    document = compare_runs(_only(a), _only(b), settings)
    if json != "-":
        print("\n".join(comparison_lines(document)))
    if json is not None:
        write_json(json, document)


def _only(path: Path) -> StoredRun:
    runs = read_results([path])
    if len(runs) != 1:
        raise ConfigError("result", path.name, f"holds {len(runs)} runs; give files of one each")
    return runs[0]
