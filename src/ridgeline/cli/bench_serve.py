"""`ridgeline bench serve`: load for any OpenAI-compatible server, and what its clients see."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from ridgeline.cli.bench_report import run_page
from ridgeline.cli.json_output import JsonTarget, check_target, write_json
from ridgeline.cli.load_options import DatasetOptions, TargetOptions, TrafficOptions, Words, name_values
from ridgeline.cli.main import EXIT_FAILURE, EXIT_INTERRUPTED
from ridgeline.cli.options import Flag
from ridgeline.cli.text_files import check_writable, write_text
from ridgeline.errors import ConfigError
from ridgeline.loadgen.benchmark import LoadPlan, execute_load, plan_load
from ridgeline.loadgen.codecs import file_codec
from ridgeline.loadgen.conditions import run_conditions
from ridgeline.loadgen.console_report import dialect_count_lines, dialect_lines, report_lines
from ridgeline.loadgen.counts import count_tokens
from ridgeline.loadgen.progress import LoadProgress
from ridgeline.loadgen.result import ReportSettings, load_result, without_detail
from ridgeline.loadgen.server_account import ask_server
from ridgeline.metrics.client_record import ClientRecord
from ridgeline.metrics.dialect_report import chosen_dialects, dialect_counts, dialect_report
from ridgeline.metrics.slo import parse_slos


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What to report, and where to."""

    goodput: Annotated[tuple[str, ...], Words] = ()
    """SLOs as NAME:MILLISECONDS, several words or repeated: ttft, tpot, e2el, itl_p99, icl_max."""
    percentile_metrics: str = "ttft,tpot,itl"
    """Metrics under vLLM's keys: ttft, tpot, itl, e2el, client_queue_time, e2el_including_client_queue."""
    metric_percentiles: str = "99"
    """Percentiles of these, separated by commas."""
    save_result: Annotated[bool, Flag] = False
    """Write the JSON into --result-dir, under --result-filename or a name like vLLM's."""
    save_detailed: Annotated[bool, Flag] = False
    """Put every request into the JSON: chunks, texts, errors."""
    append_result: Annotated[bool, Flag] = False
    """Add to the result's file, one JSON document a line, instead of replacing it."""
    result_dir: Path = Path()
    """Directory of --save-result."""
    result_filename: str | None = None
    """File name of --save-result."""
    metadata: Annotated[tuple[str, ...], Words] = ()
    """KEY=VALUE, more keys of the result."""
    label: str | None = None
    """A name of the run."""
    html: Path | None = None
    """Write a page with plots of the run to this file."""
    dialect: str | None = None
    """Print the run by other definitions: all, vllm, sglang, genai-perf, aiperf, guidellm or llama.cpp."""

    def settings(self) -> ReportSettings:
        """The same, checked.

        Raises:
            ConfigError: an SLO, a metric, a percentile or a KEY=VALUE that is none.
        """
        return ReportSettings(
            slos=parse_slos(self.goodput),
            percentile_metrics=[name.strip() for name in self.percentile_metrics.split(",") if name.strip()],
            metric_percentiles=_percentiles(self.metric_percentiles),
            save_detailed=self.save_detailed or self.html is not None,
            metadata=name_values("metadata", self.metadata),
            label=self.label,
        )


def serve(
    *,
    json: JsonTarget = None,
    target: TargetOptions = TargetOptions(),  # noqa: B008 - frozen
    dataset: DatasetOptions = DatasetOptions(),  # noqa: B008 - frozen
    traffic: TrafficOptions = TrafficOptions(),  # noqa: B008 - frozen
    report: ReportOptions = ReportOptions(),
) -> None:
    """Send requests to a server at instants fixed beforehand, and report what their clients see.

    Exit status: 0 all requests were good; 1 some failed; 2 a wrong option; 130 Ctrl-C, after the report of
    what was done until then.

    Example: ridgeline bench serve --url http://127.0.0.1:8000 --random-input-len 128 --random-output-len 32
    --num-prompts 100 --request-rate 4 --goodput ttft:500 tpot:50 --json result.json

    Parameters
    ----------
    json: str
        Write the result as JSON to this file; - prints it in place of the report.
    """
    check_target(json)
    check_writable(html=report.html)
    settings = report.settings()
    if report.dialect is not None:
        chosen_dialects(report.dialect)  # an unknown name shows before the run
    times = traffic.settings()
    plan = plan_load(
        target.settings(),
        dataset.settings(times.seed),
        times,
        api_key=target.key,
        ready_timeout_s=target.ready_check_timeout_sec,
    )
    document, records = measure(plan, settings)
    _save(document, report, json)
    if report.dialect is not None and json != "-":
        _print_dialects(report.dialect, document, records, settings.slos)
    if document["interrupted"]:
        raise SystemExit(EXIT_INTERRUPTED)
    if document["failed"]:
        raise SystemExit(EXIT_FAILURE)


def measure(plan: LoadPlan, settings: ReportSettings) -> tuple[dict[str, Any], Sequence[ClientRecord]]:
    """Run, with progress on a terminal's stderr; the result, and the records it was made of."""
    with LoadProgress(len(plan.requests), Console(stderr=True)) as progress:
        run = execute_load(plan, progress.add)
    try:
        server = ask_server(plan, run, settings.slos, all_requests=settings.save_detailed)
    except KeyboardInterrupt:  # the run was measured: its report needs nothing of the server
        server, run = None, replace(run, was_interrupted=True)
    encode = _counter(plan.target.tokenizer)
    document = load_result(
        plan, run, settings, encode=encode, conditions=run_conditions(plan.model), server=server
    )
    return document, count_tokens(run.records, encode).records


def _print_dialects(
    name: str,
    document: Mapping[str, Any],
    records: Sequence[ClientRecord],
    slos: Mapping[str, float],
) -> None:
    counts = dialect_counts(records, name, window_s=document["rates"]["window_s"], slos=slos)
    lines = [*dialect_lines(dialect_report(records, name)), "", *dialect_count_lines(counts)]
    print("\n".join(["", *lines]))


def _save(document: Mapping[str, Any], report: ReportOptions, json: str | None) -> None:
    if json != "-":
        print("\n".join(report_lines(document)))
    if report.html is not None:
        write_text("html", report.html, run_page(report.label or "this run", document))
    if not report.save_detailed:
        document = without_detail(document)
    if report.save_result or report.append_result:
        path = report.result_dir / (report.result_filename or _file_name(document))
        text = json_text.dumps(document, ensure_ascii=True, allow_nan=False) + "\n"
        known = path.read_text(encoding="utf-8") if report.append_result and path.exists() else ""
        write_text("result_filename", path, known + text)
    if json is not None:
        write_json(json, document)


def _file_name(document: Mapping[str, Any]) -> str:
    """As vLLM's: label or backend, rate, cap, model, date."""
    cap = document["max_concurrency"]
    concurrency = f"-concurrency{cap}" if cap is not None else ""
    model = str(document["model_id"]).split("/")[-1]
    who = document["label"] or document["backend"]
    return f"{who}-{document['request_rate']}qps{concurrency}-{model}-{document['date']}.json"


def _counter(tokenizer: str | None) -> Callable[[str], Sequence[int]] | None:
    return file_codec(tokenizer).encode if tokenizer is not None else None


def _percentiles(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise ConfigError("metric_percentiles", text, "must be numbers separated by commas") from None
