"""One explained request as a page: roofline, waterfall, bytes per token, and the sweeps."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.dashboard.explain_page_script import EXPLAIN_SCRIPT
from ridgeline.dashboard.page import ADAPTIVE_STYLE, html_page

Document = Mapping[str, Any]

_STYLE = (
    ADAPTIVE_STYLE
    + """
dl { display: grid; grid-template-columns: 8em minmax(0, 1fr); gap: 2px 12px; margin: 4px 0 14px; }
dt { color: var(--quiet); } dd { margin: 0; } h3 { font-size: 15px; margin: 14px 0 2px; }
code { font-size: 12.5px; overflow-wrap: anywhere; }
"""
)


def explain_page(document: Document) -> str:
    """The document of `ridgeline explain --json` as HTML; nothing is loaded from anywhere."""
    model, request, hardware = (document[name] for name in ("model", "request", "hardware"))
    batch = document["regime"]["batch"]
    beside = "" if batch == 1 else f", the last of {batch} alike"
    unsteady = "" if hardware["is_stable"] else " These are not certain: calibrate when the machine is quiet."
    body = f"""<h1>The path of one request through {_escaped(model["name"])}</h1>
<p class="muted">{request["prompt_tokens"]:,} prompt and {request["completion_tokens"]:,} output
tokens{beside}; TTFT {_ms(request["ttft_s"])}, TPOT {_ms(request["tpot_s"])}, in all
{_ms(request["e2e_s"])}. {_escaped(hardware["cpu"])}, {hardware["threads"]} threads; ceilings
{_escaped(hardware["source"])}.{unsteady}</p>
<h2>Where the time goes</h2>
<div id="waterfall"></div>
<div class="wide">{_path_table(document["path"])}</div>
<h2>The roofline</h2>
<p class="muted">A dot's height is the speed reached, its place the work per byte from memory. Lines are what
the machine can do at most. Circles are prefill, diamonds decode; the large ones are whole phases.</p>
<div id="roofline"></div>
<div class="halves"><div>{_phase_table(document["phases"])}</div><div id="bytes"></div></div>
<div class="halves"><div id="batch"></div><div id="context"></div></div>
{_what_if(document.get("what_if", ()))}
<h2>Ops</h2>
<div class="wide">{_ops_table(document["ops"])}</div>
<h2>Step by step, and how vLLM {_escaped(document["vllm"]["version"])} does it</h2>
{_walk(document)}"""
    return html_page(f"A request through {model['name']}", body, EXPLAIN_SCRIPT, document, style=_STYLE)


def _path_table(path: Sequence[Document]) -> str:
    rows = [
        [
            step["step"],
            _ms(step["seconds"]),
            _percent(step["share"]),
            _ms(step["predicted_s"]),
            f"{step['count']:,}",
            _big(step["flops"]),
            _big(step["bytes"]),
            _number(step["intensity_flops_per_byte"]),
            step["bound"],
            _percent(step["roofline_fraction"]),
        ]
        for step in path
    ]
    heads = (
        "step",
        "time",
        "share",
        "predicted before",
        "runs",
        "FLOP",
        "bytes",
        "FLOP/B",
        "bound",
        "of roofline",
    )
    return _table(heads, rows)


def _phase_table(phases: Document) -> str:
    values = (
        ("tokens", lambda p: f"{p['tokens']:,}"),
        ("steps", lambda p: f"{p['steps']:,}"),
        ("time", lambda p: _ms(p["seconds"])),
        ("predicted before", lambda p: _ms(p["predicted_s"])),
        ("tokens/s", lambda p: _number(p["tok_s"])),
        ("FLOP", lambda p: _big(p["flops"])),
        ("bytes from memory", lambda p: _big(p["dram_bytes"])),
        ("FLOP/B from memory", lambda p: _number(p["dram_intensity_flops_per_byte"])),
        ("bound", lambda p: p["bound"]),
        ("least time: compute", lambda p: _ms(p["compute_s"])),
        ("least time: memory", lambda p: _ms(p["memory_s"])),
        ("of the roofline", lambda p: _percent(p["roofline_fraction"])),
    )
    rows = [
        [title, *(value(phase) if phase["steps"] else "–" for phase in phases.values())]
        for title, value in values
    ]
    return f"<h3>Prefill and decode</h3>{_table(('', *phases), rows)}"


def _ops_table(ops: Sequence[Document]) -> str:
    rows = [
        [
            op["op"],
            op["phase"],
            _ms(op["seconds"]),
            _ms(op["predicted_s"]),
            _big(op["flops"]),
            _big(op["weight_bytes"]),
            _big(op["kv_bytes"]),
            _big(op["activation_bytes"]),
            _number(op["dram_intensity_flops_per_byte"]),
            op["bound"],
            _percent(op["roofline_fraction"]) if op["bound_s"] else "–",
        ]
        for op in ops
    ]
    heads = (
        "op", "phase", "time", "predicted", "FLOP", "B weights", "B KV", "B activations", "FLOP/B", "bound",
        "of roofline",
    )  # fmt: skip
    return _table(heads, rows)


def _what_if(answers: Sequence[Document]) -> str:
    if not answers:
        return ""
    items = "".join(
        f"<li>{_escaped(each['phase'])}: {_escaped(each['sentence'])}{_check(each['checked'])}</li>"
        for each in answers
    )
    return f"<h2>What if</h2><ul>{items}</ul>"


def _check(checked: Document | None) -> str:
    if checked is None:
        return ""
    return f"; a real run took {_ms(checked['measured_s'])} ({checked['error']:+.0%})"


def _walk(document: Document) -> str:
    vllm = {each["step"]: each for each in document["vllm"]["steps"]}
    return "".join(
        f"<h3>{step['step']}: {_ms(step['seconds'])}, {_percent(step['share'])}</h3><dl>"
        f"<dt>computes</dt><dd>{_escaped(step['computation'])}</dd>"
        f"<dt>would rule</dt><dd>{_escaped(step['bottleneck'])}</dd>"
        f"<dt>vLLM</dt><dd>{_escaped(vllm[step['step']]['where'])}. {_escaped(vllm[step['step']]['how'])}<br>"
        f"<code>{_sources(vllm[step['step']])}</code></dd></dl>"
        for step in document["path"]
    )


def _sources(step: Document) -> str:
    return ", ".join(_escaped(f"{each['path']}: {each['symbol']}") for each in step["sources"])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_escaped(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _big(value: float | None) -> str:
    if value is None:
        return "–"
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:.3g}"


def _escaped(value: object) -> str:
    return html.escape(str(value))
