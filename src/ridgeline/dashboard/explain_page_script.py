"""The script of the explain page: plots by Plotly, colours by the reader's light or dark mode."""

from __future__ import annotations

EXPLAIN_SCRIPT = r"""
const config = {displayModeBar: false, responsive: true};
const darkMode = matchMedia("(prefers-color-scheme: dark)");
const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const hues = [210, 28, 145, 320, 265, 50, 185, 0, 95];
const colour = i => `hsl(${hues[i % hues.length]}, ${darkMode.matches ? "75%, 66%" : "75%, 38%"})`;
const ms = s => s < 1e-3 ? (s * 1e6).toFixed(0) + " µs"
  : s < 0.9995 ? (s * 1e3).toPrecision(3) + " ms" : s.toFixed(2) + " s";
const big = v => {
  const scale = [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]].find(([size]) => v >= size) || [1, " "];
  return (v / scale[0]).toPrecision(3) + scale[1];
};
const percent = v => (100 * v).toFixed(1) + " %";
const heading = text => ({text, font: {size: 14}, x: 0, xref: "paper", y: 0.98, yanchor: "top"});

function axis(title, more) {
  return {title: {text: title, standoff: 8}, gridcolor: ink("--line"), zerolinecolor: ink("--line"),
    linecolor: ink("--line"), automargin: true, ...more};
}
const logAxis = (title, more) => axis(title, {type: "log", exponentformat: "SI", minexponent: 3, ...more});

function draw(id, traces, layout) {
  const base = {font: {family: "system-ui, sans-serif", size: 13, color: ink("--ink")},
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", height: 360, hovermode: "closest",
    margin: {l: 64, r: 16, t: 64, b: 48}, legend: {orientation: "h", y: 1.02, yanchor: "bottom", x: 0},
    hoverlabel: {bgcolor: ink("--paper"), bordercolor: ink("--line"), font: {color: ink("--ink")}}};
  Plotly.react(id, traces, {...base, ...layout}, config);
}

function marker(x, text, more) {
  return {line: {type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1,
      line: {color: ink("--quiet"), width: 1.5, dash: "dash"}},
    note: {x: Math.log10(x), xref: "x", y: 0.03, yref: "paper", text, showarrow: false, xanchor: "left",
      yanchor: "bottom", xshift: 5, align: "left", font: {color: ink("--quiet"), size: 12}, ...more}};
}

function waterfall() {
  const names = ["tokenize", "queue", "prefill", "decode", "sample", "detokenize"];
  const path = Object.fromEntries(DATA.path.map(step => [step.step, step]));
  const traces = names.map((name, i) => {
    const parts = DATA.timeline.filter(segment => segment.step === name);
    return {type: "bar", orientation: "h", name, y: parts.map(() => name),
      base: parts.map(p => 1e3 * p.start_s), x: parts.map(p => 1e3 * p.seconds),
      marker: {color: colour(i), line: {color: colour(i), width: 1}},
      customdata: parts.map(p => [ms(p.start_s), ms(p.seconds)]), showlegend: false, width: 0.7,
      hovertemplate: name + ": %{customdata[1]}<br>from %{customdata[0]} on<extra></extra>"};
  });
  const notes = names.map(name => ({xref: "paper", x: 1.01, xanchor: "left", y: name, showarrow: false,
    text: `${ms(path[name].seconds)}, ${percent(path[name].share)}`, font: {size: 12}}));
  draw("waterfall", traces, {height: 260, barmode: "overlay", annotations: notes,
    margin: {l: 90, r: 130, t: 8, b: 44}, xaxis: axis("ms since the request arrived", {rangemode: "tozero"}),
    yaxis: axis("", {autorange: "reversed", showgrid: false})});
}

const placed = op => op.dram_bytes > 0 && op.flops > 0 && op.seconds > 0;

function dots(list, name, shape, more) {
  return {type: "scatter", mode: "markers", name, x: list.map(o => o.dram_intensity_flops_per_byte),
    y: list.map(o => o.flops / o.seconds), customdata: list.map(o => [o.phase, ms(o.seconds),
      o.predicted_s === null ? "–" : ms(o.predicted_s), big(o.flops), big(o.dram_bytes), o.bound,
      percent(o.roofline_fraction)]),
    marker: {symbol: shape, ...more},
    hovertemplate: "<b>" + name + "</b>, %{customdata[0]}<br>%{customdata[1]}, predicted %{customdata[2]}<br>"
      + "%{customdata[3]}FLOP, %{customdata[4]}B from memory: %{x:.3g} FLOP/B<br>reaches %{y:.3s}FLOP/s: "
      + "%{customdata[6]} of the roofline<br>bound by %{customdata[5]}<extra></extra>"};
}

function roofline() {
  const hw = DATA.hardware, ops = DATA.ops.filter(placed);
  const phases = Object.entries(DATA.phases).filter(([, p]) => p.steps && placed(p))
    .map(([phase, p]) => ({phase, ...p}));
  const all = [...ops, ...phases];
  const own = new Set(Object.values(DATA.sweeps.weights).flatMap(Object.keys));
  const products = Object.entries(hw.peak_ops_per_s).filter(([n]) => own.has(n));
  const peaks = [...products.map(([n, v]) => ["products " + n, v]),
    ["attention", hw.attention_ops_per_s]].sort((a, b) => b[1] - a[1]);
  const lows = all.map(o => o.dram_intensity_flops_per_byte);
  const left = Math.min(0.5, ...lows) / 1.5;
  const right = Math.max(200, 4 * peaks[0][1] / hw.dram_bytes_per_s, ...lows) * 6;
  const slopes = [["memory", hw.dram_bytes_per_s], ...hw.caches.map(c => [c.name, c.read_bytes_per_s])];
  const traces = slopes.map(([name, rate], i) => ({type: "scatter", mode: "lines", showlegend: false,
    x: [left, peaks[0][1] / rate], y: [left * rate, peaks[0][1]], hoverinfo: "skip",
    line: {color: i ? ink("--quiet") : ink("--ink"), width: i ? 1 : 2, dash: i ? "dot" : "solid"}}));
  peaks.forEach(([name, rate], i) => traces.push({type: "scatter", mode: "lines", showlegend: false,
    x: [rate / hw.dram_bytes_per_s, right], y: [rate, rate], hoverinfo: "skip",
    line: {color: i ? ink("--quiet") : ink("--ink"), width: i ? 1 : 2, dash: i ? "dot" : "solid"}}));
  const low = Math.min(left * hw.dram_bytes_per_s, ...all.map(o => o.flops / o.seconds)) / 1.5;
  let shift = 0;
  const notes = peaks.map(([name, rate], i) => {
    shift = i && Math.log10(peaks[i - 1][1] / rate) < 0.15 ? shift - 180 : 0; // near lines: side by side
    return {x: Math.log10(right), y: Math.log10(rate), xanchor: "right", xshift: shift, yanchor: "bottom",
      showarrow: false, text: `${name}: ${big(rate)}FLOP/s`, font: {size: 12}};
  });
  const said = slopes.map(([name, rate], i) =>
    `${i ? "dotted slope, cache " : "solid slope, "}${name}: ${big(rate)}B/s`);
  notes.push({xref: "paper", yref: "paper", x: 0.99, y: 0.03, xanchor: "right", yanchor: "bottom",
    align: "right", showarrow: false, text: said.join("<br>"), font: {size: 12, color: ink("--quiet")}});
  const names = [...new Set(ops.map(o => o.op))];
  names.forEach((name, i) => ["prefill", "decode"].forEach(phase => {
    const list = ops.filter(o => o.op === name && o.phase === phase);
    if (!list.length) return;
    traces.push({...dots(list, name, phase === "prefill" ? "circle" : "diamond",
      {size: 10, color: colour(i), line: {color: ink("--paper"), width: 1}}), legendgroup: name,
      showlegend: phase === "decode" || !ops.some(o => o.op === name && o.phase === "decode")});
  }));
  phases.forEach(p => traces.push(dots([p], "all of " + p.phase,
    p.phase === "prefill" ? "circle-open" : "diamond-open",
    {size: 22, color: ink("--ink"), line: {width: 2.5}})));
  draw("roofline", traces, {height: 560, annotations: notes, margin: {l: 70, r: 16, t: 70, b: 50},
    xaxis: logAxis("FLOP per byte from memory", {range: [Math.log10(left), Math.log10(right)]}),
    yaxis: logAxis("FLOP/s", {range: [Math.log10(low), Math.log10(peaks[0][1] * 1.7)]})});
}

function bytesPerToken() {
  const context = DATA.sweeps.batch.context, kv = DATA.kv_cache.bytes_per_token * context;
  const batches = [...new Set([1, DATA.regime.batch, 8, 32])].sort((a, b) => a - b);
  const rows = batches.map(b => "batch " + b), traces = [];
  for (const [group, types] of Object.entries(DATA.sweeps.weights))
    for (const [type, bytes] of Object.entries(types))
      traces.push([`${group}, ${type}`, batches.map(b => bytes / b)]);
  traces.push([`K and V of ${context.toLocaleString("en")} tokens`, batches.map(() => kv)]);
  draw("bytes", traces.map(([name, values], i) => ({type: "bar", orientation: "h", name, y: rows,
    x: values.map(v => v / 1e6), marker: {color: colour(i)}, customdata: values.map(big),
    hovertemplate: "%{y}: %{customdata}B a token<extra>" + name + "</extra>"})),
    {title: heading("Bytes from memory for one decoded token"), barmode: "stack", height: 400,
     margin: {l: 70, r: 16, t: 40, b: 130}, legend: {orientation: "h", y: -0.22, yanchor: "top", x: 0},
     xaxis: axis("MB"), yaxis: axis("", {autorange: "reversed"})});
}

function batchSweep() {
  const sweep = DATA.sweeps.batch, points = sweep.points, shapes = [], notes = [];
  if (sweep.ridge_batch !== null) {
    const ridge = marker(sweep.ridge_batch, `the ridge: ${sweep.ridge_batch.toFixed(1)}`,
      {y: 0.97, yanchor: "top"});
    shapes.push(ridge.line); notes.push(ridge.note);
  }
  const line = (name, key, i) => ({type: "scatter", mode: "lines+markers", name, x: points.map(p => p.batch),
    y: points.map(p => p[key]), line: {color: colour(i), width: 2}, marker: {size: 6},
    customdata: points.map(p => [ms(p.products_compute_s), ms(p.products_memory_s), ms(p.predicted_s)]),
    hovertemplate: "batch %{x}: %{y:.3g} FLOP/B<br>products at least %{customdata[0]} compute, "
      + "%{customdata[1]} memory<br>a step is predicted to take %{customdata[2]}<extra>"
      + name + "</extra>"});
  draw("batch", [line("products, on weights", "products_flops_per_byte", 0),
    line("attention, on K and V", "attention_flops_per_byte", 1)],
    {title: heading("Work per byte in a decode step, by batch"), shapes, annotations: notes,
     xaxis: logAxis("requests in the step",
       {tickvals: points.map(p => p.batch).filter(b => (b & (b - 1)) === 0)}),
     yaxis: logAxis("FLOP per byte")});
}

function contextSweep() {
  const sweep = DATA.sweeps.context, points = sweep.points, batch = sweep.batch;
  const crossing = Math.round(sweep.kv_context).toLocaleString("en");
  const overtakes = marker(sweep.kv_context, `K and V overtake at ${crossing}`,
    {xanchor: "right", xshift: -5});
  const longest = marker(sweep.max_context, `longest: ${sweep.max_context.toLocaleString("en")}`, {y: 0.13});
  const line = (name, key, i) => ({type: "scatter", mode: "lines+markers", name,
    x: points.map(p => p.context), y: points.map(p => p[key]), line: {color: colour(i), width: 2},
    marker: {size: 6},
    customdata: points.map(p => [big(p[key]), ms(p.predicted_s)]),
    hovertemplate: "%{x:,} tokens: %{customdata[0]}B<br>a step is predicted to take %{customdata[1]}<extra>"
      + name + "</extra>"});
  draw("context", [line("weights", "weight_bytes", 0), line("K and V", "kv_bytes", 1)],
    {title: heading(`Bytes of a decode step of ${batch}, by context`),
     shapes: [overtakes.line, longest.line], annotations: [overtakes.note, longest.note],
     xaxis: logAxis("tokens of context a request"), yaxis: logAxis("bytes from memory")});
}

function drawAll() { waterfall(); roofline(); bytesPerToken(); batchSweep(); contextSweep(); }
drawAll();
// Of a page inside another: an address with #place would scroll the outer one, too.
const place = document.getElementById(new URLSearchParams(location.search).get("at"));
if (place) scrollTo(0, place.offsetTop);
darkMode.addEventListener("change", drawAll);
"""
