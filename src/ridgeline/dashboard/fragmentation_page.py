"""Where the memory goes under several allocators, as a page."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from ridgeline.dashboard.page import html_page


def fragmentation_page(document: Mapping[str, Any]) -> str:
    """The document of `ridgeline kv fragmentation --json` as HTML."""
    trace = document["trace"]
    rows = "".join(
        f"<tr><td>{html.escape(each['allocator'])}</td>"
        + "".join(f"<td>{100 * each['shares'][name]:.1f}</td>" for name in each["shares"])
        + f"<td>{each['requests_that_fit']['mean']:.1f}</td><td>{each['slack_tokens_per_sequence']:.2f}</td>"
        f"<td>{_or_dash(each['expected_slack_tokens_per_sequence'])}</td>"
        f"<td>{each['preemptions']:,}</td><td>{each['copied_tokens']:,}</td></tr>"
        for each in document["allocators"]
    )
    body = f"""<h1>Fragmentation of KV memory</h1>
<p class="muted">{html.escape(trace["source"])}: {trace["requests"]:,} requests, on average
{trace["mean_prompt_tokens"]:.1f} prompt and {trace["mean_output_tokens"]:.1f} output tokens, in a memory of
{document["capacity_tokens"]:,} token slots; no request is longer than
{document["max_model_len"]:,} tokens.</p>
<div id="shares"></div>
<p>used: slots with a token. reserved: empty, to be filled later by their request. internal: empty, never
filled. external: free and enough for the next request, but in pieces. unallocated: other free slots.
Averages over the steps in which a request waited. A request that finds no room to grow sends the newest
one away, whose tokens are computed again: many preemptions mean many short stays, so more requests that fit
and little work done.</p>
<div class="columns"><div id="slack"></div><div id="fit"></div></div>
<div id="course"></div>
<h2>Figures</h2>
<div style="overflow-x:auto"><table>
<tr><th>allocator</th><th>used %</th><th>reserved %</th><th>internal %</th>
<th>external %</th><th>unallocated %</th><th>requests that fit</th><th>slack a request</th>
<th>(block − 1) / 2</th><th>preemptions</th><th>tokens copied</th></tr>{rows}</table></div>"""
    return html_page("Fragmentation of KV memory", body, _SCRIPT, document)


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


_SCRIPT = r"""
const all = DATA.allocators, names = all.map(a => a.allocator);
const config = {displayModeBar: false, responsive: true};
const font = {family: "system-ui, sans-serif", size: 13, color: "#1a1a1a"};
const colours = {used: "#1f78b4", reserved: "#a6cee3", internal: "#fdbf6f", external: "#e31a1c",
  unallocated: "#e6e6e6"};
const paged = all.filter(a => a.block_size !== null);
const key = {orientation: "h", y: 1.02, yanchor: "bottom"};
Plotly.newPlot("shares", Object.keys(colours).map(kind => ({type: "bar", orientation: "h", name: kind,
  y: names, x: all.map(a => 100 * a.shares[kind]), marker: {color: colours[kind]},
  text: all.map(a => kind === "used" ? (100 * a.shares[kind]).toFixed(1) + " %" : ""), textposition: "inside",
  insidetextanchor: "middle", hovertemplate: kind + ": %{x:.1f} %<extra>%{y}</extra>"})),
  {font, barmode: "stack", height: 80 + 28 * names.length, margin: {l: 130, r: 28, t: 40, b: 40}, legend: key,
   xaxis: {title: {text: "% of the memory"}, range: [0, 100]}, yaxis: {autorange: "reversed"}}, config);
Plotly.newPlot("slack", [
  {type: "scatter", mode: "markers", name: "measured", x: paged.map(a => a.block_size),
   y: paged.map(a => a.slack_tokens_per_sequence), marker: {size: 9, color: "#1f78b4"},
   cliponaxis: false},
  {type: "scatter", mode: "lines", name: "(block − 1) / 2", x: paged.map(a => a.block_size),
   y: paged.map(a => a.expected_slack_tokens_per_sequence), line: {color: "#555", dash: "dot"}}],
  {font, height: 330, margin: {l: 60, r: 8, t: 60, b: 44}, legend: key,
   title: {text: "Empty slots of a running request", font: {size: 14}, x: 0, xref: "paper", y: 0.98},
   xaxis: {title: {text: "block size (tokens)"}, type: "log", tickvals: paged.map(a => a.block_size)},
   yaxis: {title: {text: "slots"}, rangemode: "tozero"}}, config);
Plotly.newPlot("fit", [{type: "bar", x: names, y: all.map(a => a.requests_that_fit.mean),
  marker: {color: "#33a02c"}}],
  {font, height: 330, margin: {l: 40, r: 8, t: 60, b: 110}, xaxis: {tickangle: -55},
   title: {text: "Requests that fit at once", font: {size: 14}, x: 0, xref: "paper", y: 0.98}}, config);
const chosen = ["reserve max", "reserve oracle", "first fit, growing", "buddy, growing", "paged 16",
  "paged 128"], drawn = all.filter(a => chosen.includes(a.allocator));
Plotly.newPlot("course", drawn.map(a => ({type: "scatter", mode: "lines",
  name: a.allocator, x: a.course.map(s => s.at_s), y: a.course.map(s => 100 * s.used), line: {width: 1.5}})),
  {font, height: 340, margin: {l: 60, r: 8, t: 60, b: 44}, legend: key,
   xaxis: {title: {text: "time of the trace (s)"}},
   yaxis: {title: {text: "% used"}, range: [0, 100]}}, config);
"""
