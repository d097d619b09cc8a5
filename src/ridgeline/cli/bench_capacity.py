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
from ridgeline.config.checks import check_at_least
from ridgeline.dashboard.capacity_page import capacity_page
from ridgeline.errors import ConfigError
from ridgeline.loadgen.capacity import SearchSettings
from ridgeline.loadgen.capacity_document import (
    capacity_document,
    capacity_lines,
    probe_lines,
    probe_start_line,
)
from ridgeline.loadgen.capacity_run import CapacitySearch, ProbePlan
from ridgeline.loadgen.conditions import run_conditions
from ridgeline.loadgen.settings import TRACES
from ridgeline.metrics.slo import parse_slos


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class CapacityOptions:
    """What counts as good, how sure to be, and how much to spend."""

    goodput: Annotated[tuple[str, ...], Words] = ()
    """SLOs as NAME:MILLISECONDS, several words or repeated: ttft, tpot, e2el, itl_p99, icl_max."""
    target: float = 0.99
    """Share of requests that must meet all of them."""
    precision: float = 0.05
    """Stop when the lowest rate that misses is so near above the highest that meets, as a share of it."""
    confidence: float = 0.95
    """Of all intervals."""
    min_repeats: int = 2
    """Runs at each end of the final bracket, at least."""
    max_repeats: int = 4
    """And at most, while its share's interval holds the target."""
    probe_seconds: float = 20.0
    """Shortest time over which a probe's requests arrive."""
    start_rate: float | None = None
    """First rate; by default one request in the time one takes alone."""
    max_rate: float = 1000.0
    """Highest rate to try."""
    max_probes: int = 40
    """End the search after so many probes,"""
    max_requests: int = 100_000
    """or so many requests,"""
    max_seconds: float = 1800.0
    """or so many seconds of load."""
    burstiness: float = 1.0
    """Shape of the gaps: 1 is Poisson, inf constant."""
    num_warmups: int = 4
    """Requests before the first probe."""
    seed: int = 0
    """Seed of prompts, arrivals and intervals."""
    html: Path | None = None
    """Write a page with the curve to this file."""

    def settings(self) -> SearchSettings:
        """The search's part, checked.

        Raises:
            ConfigError: an option is out of range.
        """
        return SearchSettings(
            target=self.target,
            precision=self.precision,
            confidence=self.confidence,
            min_repeats=self.min_repeats,
            max_repeats=self.max_repeats,
            start_rate=self.start_rate,
            max_rate=self.max_rate,
            max_probes=self.max_probes,
            max_requests=self.max_requests,
            max_seconds=self.max_seconds,
            seed=self.seed,
        )


def capacity(
    *,
    json: JsonTarget = None,
    target: TargetOptions = TargetOptions(),  # noqa: B008 - frozen
    dataset: DatasetOptions = DatasetOptions(num_prompts=200),  # noqa: B008 - frozen
    search: CapacityOptions = CapacityOptions(),
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
    check_writable(html=search.html)
    work = CapacitySearch(plan=_probe_plan(target, dataset, search), settings=search.settings())
    shown = json != "-"

    def say(*lines: str) -> None:
        if shown:
            print("\n".join(lines), flush=True)

    work.execute(
        on_start=lambda probe, count: say(probe_start_line(probe, count)),
        on_run=lambda run: say(*probe_lines(run, search.target, search.confidence)),
    )
    document = capacity_document(work, run_conditions(work.model))
    say(*capacity_lines(document))
    if search.html is not None:
        write_text("html", search.html, capacity_page(document))
    if json is not None:
        write_json(json, document)
    if work.was_interrupted:
        raise SystemExit(EXIT_INTERRUPTED)


def _probe_plan(target: TargetOptions, dataset: DatasetOptions, search: CapacityOptions) -> ProbePlan:
    slos = parse_slos(search.goodput)
    if not slos:
        raise ConfigError("goodput", None, "give the SLOs, as in --goodput ttft:500 tpot:50")
    check_at_least("num_prompts", dataset.num_prompts, 10)
    if not 0 < search.probe_seconds <= 3600:
        raise ConfigError("probe_seconds", search.probe_seconds, "must lie in 0…3600, above 0")
    settings = dataset.settings(search.seed)
    if settings.name in TRACES:
        raise ConfigError("dataset", settings.name, "has instants of its own; take one without for a search")
    return ProbePlan(
        target=target.settings(),
        dataset=settings,
        slos_s=slos,
        min_requests=dataset.num_prompts,
        seconds=search.probe_seconds,
        burstiness=search.burstiness,
        num_warmups=search.num_warmups,
        api_key=target.key,
    )
