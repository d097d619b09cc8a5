"""The block map as a page with a time slider."""

from __future__ import annotations

import html

from ridgeline.dashboard.block_map_text import request_letters
from ridgeline.dashboard.page import html_page
from ridgeline.metrics.block_happenings import Kind
from ridgeline.metrics.block_map import BlockState
from ridgeline.metrics.block_record import BlockRecord

_MAX_STEPS = 400
_MAX_CELLS = 400_000  # blocks × steps: some tens of megabytes of page
_COLOURS = {
    BlockState.FREE: "#f2f2f2",
    BlockState.FILLING: "#a6cee3",
    BlockState.FULL: "#1f78b4",
    BlockState.SHARED: "#6a3d9a",
    BlockState.IDLE: "#fdbf6f",
}
_MEANINGS = {
    BlockState.FREE: "free",
    BlockState.FILLING: "filling: held, with empty slots",
    BlockState.FULL: "full",
    BlockState.SHARED: "shared by several requests",
    BlockState.IDLE: "idle: held by nobody, findable until evicted",
}
_SIGNS = {
    Kind.ALLOCATED: ("+", "given"),
    Kind.FILLED: ("f", "filled up"),
    Kind.HIT: ("h", "found in the prefix cache"),
    Kind.SHARED: ("s", "shared"),
    Kind.COPIED: ("c", "a copy"),
    Kind.MERGED: ("m", "merged"),
    Kind.EVICTED: ("×", "evicted"),
    Kind.FREED: ("−", "freed"),
}


def block_map_page(record: BlockRecord) -> str:
    """The record as HTML; of more than 400 steps (fewer for many blocks) those that tell the most."""
    header, letters = record.header, request_letters(record)
    num_blocks = len(record.frames[-1].blocks) if record.frames else 0
    frames = record.key_frames(max(2, min(_MAX_STEPS, _MAX_CELLS // max(num_blocks, 1))))
    data = {
        "frames": [record.frame_document(frame) for frame in frames],
        "states": list(_COLOURS),
        "colours": list(_COLOURS.values()),
        "letters": dict(letters),
        "block_size": header.block_size,
        "signs": {kind: sign for kind, (sign, _) in _SIGNS.items()},
    }
    legend = "".join(
        f'<span class="swatch" style="background:{colour}"></span>{_MEANINGS[state]}'
        for state, colour in _COLOURS.items()
    )
    misses = "".join(
        f"<li>request {_escaped(miss['request_id'])}: {miss['hit_tokens']} tokens found; "
        f"then: {_escaped(miss['text'])}</li>"
        for miss in record.misses()
    )
    signs = ", ".join(f"<b>{sign}</b> {meaning}" for sign, meaning in _SIGNS.values())
    lost = ""
    if header.num_dropped_events:
        lost = f"<p><b>{header.num_dropped_events:,} older events were lost.</b> The map begins too late.</p>"
    names = ", ".join(f"{letter} = {_escaped(name)}" for name, letter in letters.items())
    body = f"""<h1>The life of the KV blocks</h1>
<p class="muted">{_escaped(header.model)}: {header.num_blocks:,} blocks of {header.block_size} tokens, of
which those ever touched are shown. K and V of a token: {_escaped(header.bytes_per_token_formula)}.
Requests by letter: {names or "none"}.</p>{lost}
<p class="legend">Blocks after the step:{legend}<br>A letter names the holder, a number says how many hold it;
below it the filled slots. A red dot marks what the step read,
a sign in the other corner what happened in it: {signs}.</p>
<div class="columns"><div><div id="map"></div></div>
<div><p><button id="play">Play</button> <b id="now"></b></p><p id="sums"></p>
<h2>What happened</h2><ul id="happened" class="scroll"></ul></div></div>
<div id="course"></div>
<h2>Prefix cache look-ups: why they found no more</h2><ul class="scroll">{misses or "<li>none</li>"}</ul>"""
    return html_page(f"KV blocks of {header.model}", body, _SCRIPT, data)


def _escaped(value: object) -> str:
    return html.escape(str(value))


_SCRIPT = r"""
const frames = DATA.frames, last = frames[frames.length - 1];
const count = last ? last.blocks.length : 0, perRow = Math.min(16, Math.max(count, 1));
const place = new Map((last ? last.blocks : []).map((b, i) => [b.block_id, i]));
const rows = Math.max(1, Math.ceil(count / perRow)), bytes = n => n >= 1e6 ? (n / 1e6).toFixed(1) + " MB"
  : n >= 1e3 ? (n / 1e3).toFixed(1) + " kB" : n + " B";
const gap = rows > 12 ? " " : "<br>";
const label = f => f.step_id === null ? "end" : String(f.step_id);
const scale = DATA.colours.flatMap((c, i) =>
  [[i / DATA.colours.length, c], [(i + 1) / DATA.colours.length, c]]);
const config = {displayModeBar: false, responsive: true};
const font = {family: "system-ui, sans-serif", size: 13, color: "#1a1a1a"};

function grid(fill) { return Array.from({length: rows}, () => Array(perRow).fill(fill)); }

function mapTraces(frame) {
  const z = grid(null), text = grid(""), hover = grid("");
  last.blocks.forEach((b, i) => {
    z[Math.floor(i / perRow)][i % perRow] = 0;
    hover[Math.floor(i / perRow)][i % perRow] = "block " + b.block_id + ": free";
  });
  frame.blocks.forEach(b => {
    const i = place.get(b.block_id), r = Math.floor(i / perRow), c = i % perRow;
    z[r][c] = DATA.states.indexOf(b.state);
    const who = b.owners.length === 1 ? DATA.letters[b.owners[0]] : b.owners.length || "";
    text[r][c] = b.state === "free" ? "" : "<br><b>" + who + "</b>" + gap + b.tokens;
    hover[r][c] = "block " + b.block_id + ": " + b.state + ", " + b.tokens + " of " + DATA.block_size
      + " slots" + (b.owners.length ? "<br>held by request " + b.owners.join(", ") : "")
      + (b.cached ? "<br>findable in the prefix cache" : "");
  });
  const x = [], y = [], said = [];
  frame.reads.forEach(read => {
    const i = place.get(read.block_id);
    x.push(i % perRow + 0.34); y.push(Math.floor(i / perRow) - 0.34);
    said.push("read by request " + read.request_id + ": " + read.tokens + " tokens, " + bytes(read.bytes)
      + "<br>seen by " + read.rows + " rows");
  });
  return [
    {type: "heatmap", z, text, hovertext: hover, hoverinfo: "text", texttemplate: "%{text}",
     textfont: {size: rows > 12 ? 9 : 12}, colorscale: scale, zmin: -0.5, zmax: DATA.colours.length - 0.5,
     showscale: false, xgap: 2, ygap: 2},
    {type: "scatter", mode: "markers", x, y, hovertext: said, hoverinfo: "text",
     marker: {size: 7, color: "#d7191c", line: {color: "#fff", width: 1}}}];
}

function signBoxes(frame) {
  const signs = new Map();
  frame.happenings.forEach(h => { if (h.kind in DATA.signs) h.block_ids.forEach(id =>
    signs.set(id, (signs.get(id) || new Set()).add(DATA.signs[h.kind]))); });
  return [...signs].map(([id, set]) => [place.get(id), [...set].join("")]).map(([i, text]) =>
    ({x: i % perRow - 0.47, y: Math.floor(i / perRow) - 0.47, xanchor: "left", yanchor: "top", text,
      showarrow: false, bgcolor: "#fff", borderpad: 1, font: {size: rows > 12 ? 8 : 11, color: "#000"}}));
}

function mapLayout(index) {
  return {font, annotations: signBoxes(frames[index]), showlegend: false,
    height: 112 + rows * (rows > 12 ? 34 : 64),
    margin: {l: 52, r: 8, t: 8, b: 100}, plot_bgcolor: "#fff",
    xaxis: {visible: false, fixedrange: true, range: [-0.5, perRow - 0.5]},
    yaxis: {autorange: false, range: [rows - 0.5, -0.5], fixedrange: true, showgrid: false, zeroline: false,
      tickvals: Array.from({length: rows}, (_, r) => r),
      ticktext: Array.from({length: rows}, (_, r) => "#" + last.blocks[r * perRow].block_id)},
    sliders: [{active: index, pad: {t: 16}, currentvalue: {prefix: "step ", font: {size: 14}},
      steps: frames.map(f => ({label: label(f), method: "skip", args: []}))}]};
}

function courseLayout(index) {
  const mark = {type: "line", x0: index, x1: index, yref: "paper", y0: 0, y1: 1,
    line: {color: "#d7191c", width: 2}};
  return {font, height: 360, margin: {l: 70, r: 8, t: 30, b: 44}, shapes: [mark], hovermode: "x unified",
    legend: {orientation: "h", y: 1.02, yanchor: "bottom"},
    xaxis: {title: {text: "step"}, anchor: "y2", tickvals: ticks, ticktext: ticks.map(i => label(frames[i]))},
    yaxis: {title: {text: "blocks"}, domain: [0.42, 1], rangemode: "tozero"},
    yaxis2: {title: {text: "K, V read (B)"}, domain: [0, 0.32], rangemode: "tozero"}};
}

const every = Math.max(1, Math.ceil(frames.length / 20));
const ticks = frames.map((_, i) => i).filter(i => i % every === 0);
const steps = frames.map((_, i) => i);
const courseTraces = DATA.states.map((state, s) => ({type: "scatter", mode: "lines", stackgroup: "blocks",
  name: state, x: steps, y: frames.map(f => f.blocks.filter(b => b.state === state).length),
  line: {width: 0.5, shape: "hv", color: "#666"}, fillcolor: DATA.colours[s]})).filter((_, s) => s > 0);
courseTraces.push({type: "bar", name: "K, V read", x: steps, y: frames.map(f => f.read_bytes),
  yaxis: "y2", marker: {color: "#33a02c"}, showlegend: false});

let current = 0;
function show(index) {
  current = index;
  const frame = frames[index];
  Plotly.react("map", mapTraces(frame), mapLayout(index), config);
  Plotly.relayout("course", {"shapes[0].x0": index, "shapes[0].x1": index});
  document.getElementById("now").textContent =
    (frame.step_id === null ? "after the last step" : "step " + frame.step_id)
    + " · " + frame.at_s.toFixed(3) + " s · " + frame.scheduled_tokens + " tokens computed";
  document.getElementById("sums").textContent = frame.used_blocks + " blocks used, " + frame.idle_blocks
    + " idle, " + frame.free_blocks.toLocaleString("en") + " free; slack " + frame.slack_tokens
    + " tokens; " + bytes(frame.read_bytes) + " of K and V read.";
  const lines = frame.happenings.map(h => h.text);
  if (!lines.length) lines.push("no block changed its state but by the tokens written to it");
  document.getElementById("happened").replaceChildren(...lines.map(line => {
    const item = document.createElement("li"); item.textContent = line; return item; }));
}

if (frames.length) {
  const wanted = frames.findIndex(f => "#step=" + label(f) === location.hash);
  const start = wanted >= 0 ? wanted : 0;
  Plotly.newPlot("map", mapTraces(frames[start]), mapLayout(start), config);
  Plotly.newPlot("course", courseTraces, courseLayout(start), config);
  document.getElementById("map").on("plotly_sliderchange", e => show(e.slider.active));
  show(start);
  let timer = null;
  document.getElementById("play").onclick = event => {
    if (timer !== null) { clearInterval(timer); timer = null; event.target.textContent = "Play"; return; }
    event.target.textContent = "Stop";
    timer = setInterval(() => show((current + 1) % frames.length), 400);
  };
}
"""
