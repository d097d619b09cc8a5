"""One or many load runs of a server as a page: curves, points, requests as bars, tables."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.dashboard.load_page_script import LOAD_SCRIPT
from ridgeline.dashboard.load_tables import (
    conditions_table,
    failures_table,
    late_table,
    latency_table,
    runs_table,
)
from ridgeline.dashboard.load_view import MAX_BARS, LoadPageRun, rate_label, run_view
from ridgeline.dashboard.page import ADAPTIVE_STYLE, html_page

_PERCENTILES = ("n", "mean", "p50", "p90", "p99", "low_n")


def load_page(runs: Sequence[LoadPageRun]) -> str:
    """The page of at least one run; those of several rates are also drawn as curves over the rate."""
    assert runs, "a page of no run"
    ordered = sorted(runs, key=_offered)
    views = [run_view(run) for run in ordered]
    for view, label in zip(views, _labels(ordered), strict=True):
        view["label"] = label
    data = {"runs": views, "points": [_point(run, view) for run, view in zip(ordered, views, strict=True)]}
    models = ", ".join(dict.fromkeys(str(run.document["model_id"]) for run in ordered))
    body = "\n".join(
        [
            f"<h1>Load on {_escaped(models)}</h1>",
            *_head(ordered),
            "<h2>Runs</h2>",
            runs_table(ordered, [view["label"] for view in views]),
            _over_rates(ordered),
            _distributions(),
            _chooser(views),
            *(
                _of_run(index, run, view)
                for index, (run, view) in enumerate(zip(ordered, views, strict=True))
            ),
            "<h2>Conditions</h2>",
            conditions_table(ordered, [view["label"] for view in views]),
        ]
    )
    return html_page(f"Load on {models}", body, LOAD_SCRIPT, data, style=ADAPTIVE_STYLE)


def _labels(runs: Sequence[LoadPageRun]) -> list[str]:
    """Rates, with the file's name or a number where two are alike."""
    labels = [rate_label(run.document) for run in runs]
    names = [
        f"{label} ({run.name})" if labels.count(label) > 1 else label
        for label, run in zip(labels, runs, strict=True)
    ]
    return [f"{name} {index}" if names.count(name) > 1 else name for index, name in enumerate(names, start=1)]


def _offered(run: LoadPageRun) -> float:
    rate = run.document["request_rate"]
    return float("inf") if rate == "inf" else float(rate)


def _head(runs: Sequence[LoadPageRun]) -> list[str]:
    """What to know before any figure: failures, runs that don't count, limits."""
    lines = []
    sent = sum(len(run.records) for run in runs)
    failed = sum(run.document["failed"] for run in runs)
    if failed:
        lines.append(
            f'<p class="bad">{failed:,} of {sent:,} requests failed; they are in no latency, and keep the '
            "curves of TTFT, TPOT and E2E below 100 %.</p>"
        )
    for run in runs:
        name, document = f"{_escaped(rate_label(run.document))} ({_escaped(run.name)})", run.document
        if not document["valid"]:
            lines.append(f'<p class="bad">Not valid: {name}: {_escaped(document["invalid_because"])}.</p>')
        if document["interrupted"]:
            lines.append(f'<p class="bad">Interrupted: {name}: {document["num_not_sent"]:,} never sent.</p>')
    limits = {f"{name} ≤ {limit:g} ms" for run in runs for name, limit in _slo(run.document).items()}
    text = f"SLOs: {', '.join(sorted(limits))}." if limits else "No SLO was set (--goodput)."
    return [
        *lines,
        f'<p class="muted">Latencies in ms from the instant a request was scheduled for, as its client saw '
        f"them. P99 of fewer than 100 values is marked *. {_escaped(text)}</p>",
    ]


def _slo(document: Mapping[str, Any]) -> Mapping[str, float]:
    found = document["goodput"]
    return dict(found["slo"]) if found else {}


def _over_rates(runs: Sequence[LoadPageRun]) -> str:
    """Two plots that need several rates; with one they say so."""
    hint = ""
    if len({_offered(run) for run in runs}) < 2:
        hint = (
            '<p class="muted">One rate only: run bench serve at others with --save-detailed, and give all '
            "files to bench report.</p>"
        )
    return f"""<h2>Throughput, latency and goodput over the rate</h2>{hint}
<div class="halves"><div id="tradeoff"></div><div id="goodput"></div></div>"""


def _distributions() -> str:
    return """<h2>Latencies</h2>
<p class="muted">Share of requests that were at most so late; of the gaps between tokens for ITL.</p>
<div class="halves"><div id="cdf_ttft"></div><div id="cdf_tpot"></div><div id="cdf_itl"></div>
<div id="cdf_e2e"></div></div>"""


def _chooser(views: Sequence[Mapping[str, Any]]) -> str:
    if len(views) == 1:
        return ""
    options = "".join(
        f'<option value="{index}">{_escaped(view["label"])}</option>' for index, view in enumerate(views)
    )
    return f"""<h2>One run</h2><p><label>Run: <select id="run">{options}</select></label></p>"""


def _of_run(index: int, run: LoadPageRun, view: Mapping[str, Any]) -> str:
    """The part of one run; the script shows one at a time."""
    ttft, itl, gantt = view["ttft"], view["itl"], view["gantt"]
    queue = (
        "The queue is the server's own, laid right behind the send."
        if gantt["has_queue"]
        else "The server told no queue: it is inside the time to the first token."
    )
    rows = f"{gantt['num_shown']:,} of {gantt['n']:,} requests, those around the latest first token"
    shown = rows if gantt["n"] > MAX_BARS else f"All {gantt['n']:,} requests"
    return f"""<section data-run="{index}"{" hidden" if index else ""}>
<h2>First tokens by the time of arrival</h2>{_thinned(len(ttft["ms"]), ttft["n"], "first tokens")}
<div id="ttft_{index}"></div>
<h2>Gaps between chunks</h2>{_thinned(len(itl["ms"]), itl["n"], "gaps")}
<div id="itl_{index}"></div>
<h2>Requests</h2><p class="muted">{shown}. {queue}</p>
<div id="gantt_{index}"></div>
<h2>Figures</h2>{latency_table(run.document)}
{failures_table(run.document)}{late_table(run.document)}</section>"""


def _thinned(shown: int, n: int, what: str) -> str:
    if shown >= n:
        return ""
    return (
        f'<p class="muted">{shown:,} of {n:,} {what} are drawn: the 500 longest, and every so many-th of '
        "the others.</p>"
    )


def _point(run: LoadPageRun, view: Mapping[str, Any]) -> dict[str, Any]:
    """What curves over the rate need of a run."""
    document = run.document
    found, rate = document["goodput"], document["request_rate"]
    return {
        "label": view["label"],
        "rate": None if rate == "inf" else rate,
        "requests_per_s": document["rates"]["requests_per_s"],
        "output_tokens_per_s": document["rates"]["output_tokens_per_s"],
        "goodput": found["rate"] if found else None,
        "attainment": found["attainment"] if found else None,
        "valid": document["valid"],
        **{
            name: {key: document["ridgeline"][f"{name}_ms"][key] for key in _PERCENTILES}
            for name in ("ttft", "tpot", "itl", "e2e")
        },
    }


def _escaped(value: object) -> str:
    return html.escape(str(value))
