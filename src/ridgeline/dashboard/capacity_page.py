"""A capacity search as a page: attainment and goodput over the rate, what broke, every probe."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from ridgeline.dashboard.load_page_script import PLOT_SCRIPT
from ridgeline.dashboard.load_tables import figures_table
from ridgeline.dashboard.page import ADAPTIVE_STYLE, html_page

_ENDS = {
    None: "unfinished",
    "found": "its ends are as near and as sure as asked for",
    "never": "no rate meets the target",
    "always": "the highest rate allowed meets the target",
    "budget": "time, requests or probes were used up before its ends were near and sure enough",
}


def capacity_page(document: Mapping[str, Any]) -> str:
    """The document of `bench capacity --json` as HTML."""
    found = document["capacity"]
    limits = ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in document["slo"].items())
    result = "not known" if found["rate"] is None else f"{found['rate']:.3g} requests/s"
    top = "open" if found["high"] is None else f"{found['high']:.3g}"
    low = "–" if found["low"] is None else f"{found['low']:.3g}"
    ended = "interrupted" if document["interrupted"] else _ENDS[document["verdict"]]
    notes = "".join(f"<p>{html.escape(note)}.</p>" for note in document["notes"])
    body = f"""<h1>Capacity of {html.escape(str(document["model_id"]))}: {result}</h1>
<p class="muted">Up to there {100 * document["target"]:g} % of requests meet {html.escape(limits)}.
{100 * document["confidence"]:g} % interval {low}…{top}. The search ended: {ended}.</p>{notes}
<div class="halves"><div id="attainment"></div><div id="goodput"></div></div>
{_bottleneck(document)}
<h2>Rates</h2>{_levels(document)}
<h2>Probes in order</h2>{_probes(document)}
<h2>Conditions</h2>{_conditions(document)}"""
    title = f"Capacity of {document['model_id']}"
    return html_page(title, body, PLOT_SCRIPT + _SCRIPT, document, style=ADAPTIVE_STYLE)


def _bottleneck(document: Mapping[str, Any]) -> str:
    found = document["bottleneck"]
    if found is None:
        return ""
    rows = [
        (each["name"], f"{each['below_ms']:.2f}", f"{each['above_ms']:.2f}", f"{each['growth_ms']:+.2f}")
        for each in found["shares"]
    ]
    source = "the server's own figures" if found["source"] == "server" else "what the client sees only"
    facts = "".join(f"<li>{html.escape(fact)}</li>" for fact in found["facts"])
    heads = ("part", "ms below capacity", "ms above", "growth")
    return f"""<h2>Just above, {html.escape(found["slo"])} breaks first</h2>
<p class="muted">By {source}, at the highest rate that met the target and the lowest that missed it.</p>
{figures_table(heads, rows)}<ul>{facts}</ul>"""


def _levels(document: Mapping[str, Any]) -> str:
    rows = [
        (
            _pace(each["rate"]),
            str(each["num_runs"]),
            f"{each['num_sent']:,}",
            f"{100 * each['share']:.2f} %",
            f"{100 * each['low']:.2f}…{100 * each['high']:.2f} %",
            f"{100 * each['fitted']:.2f} %",
        )
        for each in document["levels"]
    ]
    return figures_table(("requests/s", "runs", "n", "good", "interval", "falling fit"), rows)


def _probes(document: Mapping[str, Any]) -> str:
    slos = list(document["slo"])
    rows = [
        (
            _pace(each["rate"]),
            each["why"],
            f"{each['num_sent']:,}",
            f"{100 * each['num_good'] / max(each['num_sent'], 1):.1f} %",
            *(f"{100 * each['attainment_by_slo'][name]:.1f} %" for name in slos),
            f"{each['seconds']:.1f}",
            "cut short" if each["was_cut"] else "",
            "; ".join(f"{count} × {reason}" for reason, count in each["failures"].items()),
        )
        for each in document["probes"]
    ]
    heads = ("requests/s", "why", "n", "good", *(f"{name} alone" for name in slos), "s", "", "failures")
    return figures_table(heads, rows, word_columns=(1, len(heads) - 2, len(heads) - 1))


def _conditions(document: Mapping[str, Any]) -> str:
    conditions = dict(document["conditions"])
    versions = conditions.pop("versions", None) or {}
    rows = [(name, str(value)) for name, value in conditions.items() if value is not None]
    rows += [(f"version of {name}", str(value)) for name, value in versions.items()]
    rows += [(name, _setting(value)) for name, value in document["settings"].items() if value is not None]
    return figures_table(("condition", ""), rows, "words")


def _setting(value: object) -> str:
    """A group of settings as its names and values."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return str(value)


def _pace(rate: float) -> str:
    return "one at a time" if rate == 0 else f"{rate:g}"


_SCRIPT = r"""
const levels = DATA.levels.filter(l => l.rate > 0), found = DATA.capacity;
const goodOf = l => l.rate * l.share;

function marks() {
  const out = [];
  if (found.low !== null) out.push({type: "rect", x0: found.low,
    x1: found.high === null ? Math.max(...levels.map(l => l.rate)) : found.high, yref: "paper", y0: 0, y1: 1,
    fillcolor: colour(0, 2), opacity: 0.13, line: {width: 0}});
  if (found.rate !== null && found.rate > 0) out.push({type: "line", x0: found.rate, x1: found.rate,
    yref: "paper", y0: 0, y1: 1, line: {color: colour(0, 2), width: 1.5}});
  return out;
}

function drawAll() {
  if (!levels.length) {
    empty("attainment", "No rate was probed.");
    empty("goodput", "");
    return;
  }
  const a = colour(0, 2), b = colour(1, 2), x = levels.map(l => l.rate), top = Math.max(...x);
  const target = 100 * DATA.target;
  draw("attainment", [
    {type: "scatter", mode: "markers", name: "good, all runs of a rate", x, y: levels.map(l => 100 * l.share),
      marker: {size: 8, color: a}, customdata: levels.map(l => l.num_sent),
      error_y: {type: "data", symmetric: false, array: levels.map(l => 100 * (l.high - l.share)),
        arrayminus: levels.map(l => 100 * (l.share - l.low)), color: a, thickness: 1},
      hovertemplate: "%{x:.4~g} requests/s: %{y:.2f} % of %{customdata}<extra></extra>"},
    {type: "scatter", mode: "lines", name: "falling fit", x, y: levels.map(l => 100 * l.fitted),
      line: {color: b, width: 2}, hoverinfo: "skip"},
    {type: "scatter", mode: "lines+text", x: [0, top], y: [target, target], text: ["", `${target} %`],
      textposition: "top left", textfont: {color: bad()}, line: {color: bad(), width: 1.5, dash: "dash"},
      showlegend: false, hoverinfo: "skip"}],
    {title: title("Share of requests that meet all SLOs"), height: 380, margin: {l: 60, r: 16, t: 72, b: 48},
      shapes: marks(), xaxis: axis("requests/s", {rangemode: "tozero"}),
      yaxis: axis("%", {range: [0, 104]})});
  draw("goodput", [
    {type: "scatter", mode: "lines", name: "all good", x: [0, top], y: [0, top], hoverinfo: "skip",
      line: {color: ink("--quiet"), width: 1, dash: "dot"}},
    {type: "scatter", mode: "lines+markers", name: "goodput", x, y: levels.map(goodOf), marker: {size: 8},
      line: {color: a, width: 2}, hovertemplate: "%{y:.3~g} of %{x:.3~g} requests/s good<extra></extra>"}],
    {title: title("Goodput against the rate"), height: 380, margin: {l: 60, r: 16, t: 72, b: 48},
      shapes: marks(), xaxis: axis("requests/s", {rangemode: "tozero"}),
      yaxis: axis("good requests/s", {rangemode: "tozero"})});
}
darkMode.addEventListener("change", drawAll);
drawAll();
"""
