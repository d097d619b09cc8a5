"""`ridgeline bench capacity`: the highest rate at which a server keeps its promises."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ridgeline.cli.json_output import JsonTarget, check_target, write_json
from ridgeline.cli.load_options import DatasetOptions, TargetOptions, Words
from ridgeline.cli.main import EXIT_INTERRUPTED
from ridgeline.cli.text_files import check_writable, write_text
from ridgeline.dashboard.capacity_page import capacity_page
from ridgeline.loadgen.capacity import SearchSettings
from ridgeline.loadgen.capacity_document import (
    capacity_document,
    capacity_lines,
    probe_lines,
    probe_start_line,
)
from ridgeline.loadgen.capacity_run import CapacitySearch, ProbePlan, ProbeSettings
from ridgeline.loadgen.conditions import run_conditions
from ridgeline.metrics.slo import parse_slos

Flat = Parameter(name="*")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GoalOptions:
    """What counts as good, and the page."""

    goodput: Annotated[tuple[str, ...], Words] = ()
    """SLOs as NAME:MILLISECONDS, several words or repeated: ttft, tpot, e2el, itl_p99, icl_max."""
    html: Path | None = None
    """Write a page with the curve to this file."""


def capacity(
    *,
    json: JsonTarget = None,
    goal: GoalOptions = GoalOptions(),
    target: TargetOptions = TargetOptions(),  # noqa: B008 - frozen
    dataset: DatasetOptions = DatasetOptions(num_prompts=200),  # noqa: B008 - frozen
    search: Annotated[SearchSettings, Flat] = SearchSettings(),  # noqa: B008 - frozen
    probes: Annotated[ProbeSettings, Flat] = ProbeSettings(),  # noqa: B008 - frozen
) -> None:
    """Find the highest rate at which enough requests meet their SLOs, and what breaks just above it.

    Each probe is a run of bench serve: at least --num-prompts requests (200), and --probe-seconds of them.
    Exit status: 0 with a result; 2 a wrong option; 130 Ctrl-C, after what is known by then.

    Example: ridgeline bench capacity --goodput ttft:500 tpot:50 --random-input-len 128
    --random-output-len 32 --html capacity.html

    Parameters
    ----------
    json: str
        Write the result as JSON to this file; - prints it in place of the report.
    """
    check_target(json)
    check_writable(html=goal.html)
    plan = ProbePlan(
        target=target.settings(),
        dataset=dataset.settings(search.seed),
        slos_s=parse_slos(goal.goodput),
        probes=probes,
        api_key=target.key,
    )
    work = CapacitySearch(plan=plan, settings=search)

    def say(*lines: str) -> None:
        if json != "-":
            print("\n".join(lines), flush=True)

    work.execute(
        on_start=lambda probe, count: say(probe_start_line(probe, count)),
        on_run=lambda run: say(*probe_lines(run, search.target, search.confidence)),
    )
    document = capacity_document(work, run_conditions(work.model))
    say(*capacity_lines(document))
    if goal.html is not None:
        write_text("html", goal.html, capacity_page(document))
    if json is not None:
        write_json(json, document)
    if work.was_interrupted:
        raise SystemExit(EXIT_INTERRUPTED)
