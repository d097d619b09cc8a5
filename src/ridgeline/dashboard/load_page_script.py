"""The script of the load page: plots by Plotly, colours by the reader's light or dark mode."""

from __future__ import annotations

PLOT_SCRIPT = r"""
const config = {displayModeBar: false, responsive: true};
const darkMode = matchMedia("(prefers-color-scheme: dark)");
const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const hue = (i, n) => n < 2 ? 210 : 215 - 195 * i / (n - 1);
const colour = (i, n) => `hsl(${hue(i, n)}, ${darkMode.matches ? "75%, 64%" : "78%, 40%"})`;
const bad = () => ink("--bad");
// Plotly reads text as a kind of HTML: what comes from outside is shown as it is.
const plain = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function axis(title, more) {
  return {title: {text: title, standoff: 8}, gridcolor: ink("--line"), zerolinecolor: ink("--line"),
    linecolor: ink("--line"), automargin: true, ...more};
}

function draw(id, traces, layout) {
  const base = {font: {family: "system-ui, sans-serif", size: 13, color: ink("--ink")},
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", height: 320, hovermode: "closest",
    margin: {l: 64, r: 16, t: 44, b: 48}, showlegend: traces.filter(t => t.showlegend !== false).length > 1,
    legend: {orientation: "h", y: 1.02, yanchor: "bottom", x: 0},
    hoverlabel: {bgcolor: ink("--paper"), bordercolor: ink("--line"), font: {color: ink("--ink")}}};
  Plotly.react(id, traces, {...base, ...layout}, config);
}

function empty(id, text) {
  const note = {text, showarrow: false, x: 0, xref: "paper", xanchor: "left", y: 0.5, yref: "paper"};
  draw(id, [], {height: 120, xaxis: {visible: false}, yaxis: {visible: false}, annotations: [note],
    margin: {l: 8, r: 8, t: 8, b: 8}});
}

function title(text) { return {text, font: {size: 14}, x: 0, xref: "paper", y: 0.98, yanchor: "top"}; }

"""
"""Colours, axes and an empty plot: the beginning of every script."""

LOAD_SCRIPT = (
    PLOT_SCRIPT
    + r"""
const runs = DATA.runs, points = DATA.points;
const names = {ttft: "TTFT", tpot: "TPOT", itl: "ITL", e2e: "E2E"};
const slos = {ttft: "ttft", tpot: "tpot", e2e: "e2el"};

function powers(traces, ...others) {
  // A value in two hundred may lie left of the picture: a few gaps of nothing would squeeze the rest.
  const all = [...traces.flatMap(t => t.x.filter((_, i) => t.y[i] >= 0.5 || t.x.length < 3)), ...others];
  let low = Infinity, high = -Infinity;
  for (const v of all) { low = Math.min(low, v); high = Math.max(high, v); }
  if (high / low < 4) { const mid = Math.sqrt(low * high); low = mid / 2; high = mid * 2; }
  return [Math.log10(low) - 0.04, Math.log10(high) + 0.06];
}

const ticks = {type: "log", dtick: "D2", exponentformat: "none", tickformat: "~g", minexponent: 6,
  tickangle: 0, separatethousands: true};

function cdf(name) {
  const id = "cdf_" + name;
  const drawn = runs.map((run, i) => ({...run.cdf[name], label: run.label, i})).filter(c => c.n);
  if (!drawn.length) return empty(id, `<b>${names[name]}</b>: no request has one`);
  const traces = drawn.map(c => ({type: "scatter", mode: c.n === 1 ? "markers" : "lines",
    x: c.x, y: c.y.map(v => 100 * v), line: {shape: "hv", width: 2, color: colour(c.i, runs.length)},
    marker: {color: colour(c.i, runs.length), size: 8},
    name: `${plain(c.label)}, n ${c.n.toLocaleString("en")}`,
    hovertemplate: "%{y:.1f} % ≤ %{x:.4~g} ms<extra>" + "%{fullData.name}</extra>"}));
  const limits = [...new Set(runs.map(r => r.slo[slos[name]]).filter(v => v !== undefined && v > 0))];
  const range = powers(traces, ...limits);
  limits.forEach(limit => traces.push({type: "scatter", mode: "lines+text", x: [limit, limit], y: [100, 0],
    text: ["", ` SLO ${limit} ms`], textposition: "top right", textfont: {color: bad()}, showlegend: false,
    line: {color: bad(), width: 1.5, dash: "dash"}, hoverinfo: "skip"}));
  const rows = Math.ceil(traces.filter(t => t.showlegend !== false).length / 3);
  draw(id, traces, {title: title(`${names[name]}: share at most so late`), height: 330 + 20 * rows,
    margin: {l: 56, r: 16, t: 40 + 20 * rows, b: 48}, showlegend: true,
    xaxis: axis("ms", {...ticks, range}), yaxis: axis("%", {range: [0, 102]})});
}

function line(name, key, x, more) {
  const kept = points.filter(p => p[name][key] !== null && x(p) !== null);
  return {type: "scatter", mode: "lines+markers", x: kept.map(x), y: kept.map(p => p[name][key]),
    name: `${names[name]} ${key.toUpperCase()}`, marker: {size: 7},
    customdata: kept.map(p => `${plain(p.label)}, n ${p[name].n.toLocaleString("en")}`
      + (key === "p99" && p[name].low_n ? " (few)" : "")),
    hovertemplate: "%{customdata}: %{y:.4~g} ms<extra>%{fullData.name}</extra>", ...more};
}

function tradeoff() {
  const x = p => p.output_tokens_per_s, a = colour(0, 2), b = colour(1, 2);
  const traces = [line("ttft", "p50", x, {line: {color: a}}),
    line("ttft", "p99", x, {line: {color: a, dash: "dot"}}),
    line("tpot", "p50", x, {line: {color: b}}), line("tpot", "p99", x, {line: {color: b, dash: "dot"}})];
  if (!traces.some(t => t.x.length)) return empty("tradeoff", "No request was good: no latency to draw.");
  draw("tradeoff", traces, {title: title("Latency against throughput"), height: 360,
    margin: {l: 64, r: 16, t: 72, b: 48}, xaxis: axis("output tokens/s", {rangemode: "tozero"}),
    yaxis: axis("ms", {type: "log", dtick: "D2", tickformat: "~g", exponentformat: "none"})});
}

function goodput() {
  const kept = points.filter(p => p.rate !== null && p.goodput !== null);
  if (!kept.length) return empty("goodput", points.some(p => p.goodput !== null)
    ? "Goodput: no run has a rate (all at once, or closed)." : "Goodput: no SLO was set (--goodput).");
  const a = colour(0, 2), b = colour(1, 2), top = Math.max(...kept.map(p => p.rate));
  draw("goodput", [
    {type: "scatter", mode: "lines", x: [0, top], y: [0, top], name: "all good", hoverinfo: "skip",
      line: {color: ink("--quiet"), width: 1, dash: "dot"}},
    {type: "scatter", mode: "lines+markers", x: kept.map(p => p.rate), y: kept.map(p => p.goodput),
      name: "goodput", marker: {size: 8}, line: {color: a, width: 2},
      hovertemplate: "%{y:.3~g} good/s of %{x:.3~g} asked<extra></extra>"},
    {type: "scatter", mode: "lines+markers", x: kept.map(p => p.rate), y: kept.map(p => 100 * p.attainment),
      name: "attainment", yaxis: "y2", marker: {size: 6}, line: {color: b, width: 1.5, dash: "dash"},
      hovertemplate: "%{y:.2f} % at %{x:.3~g} requests/s<extra></extra>"}],
    {title: title("Goodput against the rate"), height: 360, margin: {l: 64, r: 64, t: 72, b: 48},
      xaxis: axis("requests/s asked for", {rangemode: "tozero"}),
      yaxis: axis("good requests/s", {rangemode: "tozero"}),
      yaxis2: axis("% of all sent", {overlaying: "y", side: "right", range: [0, 103], showgrid: false,
        tickmode: "linear", tick0: 0, dtick: 20})});
}

function limit(value, end, text) {
  return value === undefined || !(value > 0) ? [] : [{type: "scatter", mode: "lines+text", x: [0, end],
    y: [value, value], text: ["", text], textposition: "top left", textfont: {color: bad()},
    showlegend: false, line: {color: bad(), width: 1.5, dash: "dash"}, hoverinfo: "skip"}];
}

function ttft(index) {
  const run = runs[index], d = run.ttft, id = "ttft_" + index;
  if (!d.ms.length && !d.failed_ms.length) return empty(id, "No request was sent.");
  const end = Math.max(...d.t, ...d.failed_t, 0.001);
  draw(id, [
    {type: "scatter", mode: "markers", x: d.t, y: d.ms, text: d.id.map(plain), name: `first token (${d.n})`,
      marker: {size: 5, opacity: 0.75, color: colour(0, 2)},
      hovertemplate: "%{text}<br>%{y:.1f} ms, scheduled at %{x:.2f} s<extra></extra>"},
    {type: "scatter", mode: "markers", x: d.failed_t, y: d.failed_ms.map(v => Math.max(v, 0.01)),
      text: d.failed_why.map(plain), name: `failed (${d.n_failed}): when it ended`,
      visible: d.n_failed > 0,
      marker: {size: 8, symbol: "x-thin", line: {width: 2, color: bad()}, color: bad()},
      hovertemplate: "%{text}<br>ended after %{y:.1f} ms<extra></extra>"},
    ...limit(run.slo.ttft, end, `SLO ${run.slo.ttft} ms`)],
    {xaxis: axis("scheduled at (s)", {rangemode: "tozero"}), height: 340,
      yaxis: axis("ms", {type: "log", dtick: "D2", tickformat: "~g", exponentformat: "none"})});
}

function itl(index) {
  const d = runs[index].itl, id = "itl_" + index;
  if (!d.ms.length) return empty(id, "No request has two chunks.");
  // The shortest in two hundred are drawn at the bottom, or they would squeeze the rest.
  const low = d.ms.slice().sort((a, b) => a - b)[Math.floor(d.ms.length / 200)];
  draw(id, [{type: "scatter", mode: "markers", x: d.t, y: d.ms.map(v => Math.max(v, low)),
    text: d.id.map(plain), name: "gap", customdata: d.ms,
    marker: {size: 4, opacity: 0.5, color: colour(0, 2)},
    hovertemplate: "%{text}<br>%{customdata:.2f} ms, at %{x:.2f} s<extra></extra>"}],
    {xaxis: axis("time (s)", {rangemode: "tozero"}), margin: {l: 64, r: 16, t: 12, b: 48},
      yaxis: axis("ms", {type: "log", dtick: "D2", tickformat: "~g", exponentformat: "none"})});
}

function gantt(index) {
  const d = runs[index].gantt, id = "gantt_" + index, rows = d.rows;
  if (!rows.length) return empty(id, "No request was sent.");
  const parts = [["wait", "client's wait", ink("--quiet")], ["queue", "server's queue", colour(2, 3)],
    ["first", d.has_queue ? "prefill, to the first token" : "to the first token", colour(1, 3)],
    ["decode", "decode", colour(0, 3)], ["failed", "failed", bad()]];
  const ends = rows.map(r => r.start), y = rows.map((_, i) => i);
  const traces = parts.map(([key, name, fill]) => {
    const base = ends.slice();
    rows.forEach((r, i) => { ends[i] += r[key]; });
    return {type: "bar", orientation: "h", y, x: rows.map(r => r[key]), base, name, marker: {color: fill},
      text: rows.map(r => plain(`${r.id}: ${r.text}`)), textposition: "none",
      customdata: rows.map(r => 1000 * r[key]), visible: rows.some(r => r[key] > 0),
      hovertemplate: "%{text}<br>" + name + " %{customdata:.1f} ms<extra></extra>"};
  });
  draw(id, traces, {barmode: "overlay", bargap: rows.length > 60 ? 0.1 : 0.25,
    height: 130 + Math.max(7 * rows.length, 80), showlegend: true,
    xaxis: axis("time (s)", {rangemode: "tozero"}),
    yaxis: axis("requests in order", {autorange: "reversed", showticklabels: false, showgrid: false})});
}

let chosen = 0;
function showRun(index) {
  chosen = index;
  document.querySelectorAll("section[data-run]").forEach(each => {
    each.hidden = each.dataset.run !== String(index);
  });
  ttft(index); itl(index); gantt(index);
}
function drawAll() { Object.keys(names).forEach(cdf); tradeoff(); goodput(); showRun(chosen); }
const select = document.getElementById("run");
if (select) select.onchange = () => showRun(Number(select.value));
darkMode.addEventListener("change", drawAll);
drawAll();
"""
)
