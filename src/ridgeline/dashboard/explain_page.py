"""One explained request as a page: roofline, waterfall, bytes per token, and the sweeps."""

from __future__ import annotations

import html
from collections.abc import Sequence

from ridgeline.dashboard.explain_page_script import EXPLAIN_SCRIPT
from ridgeline.dashboard.explain_view import (
    OP_COLUMNS,
    PATH_COLUMNS,
    PHASE_ROWS,
    Columns,
    Document,
    answer_line,
    cache_line,
    machine_line,
    measured_line,
    phase_cells,
    request_line,
    vllm_line,
    warnings,
)
from ridgeline.dashboard.page import ADAPTIVE_STYLE, html_page
from ridgeline.perf.quantities import milliseconds, percent

_STYLE = (
    ADAPTIVE_STYLE
    + """
dl { display: grid; grid-template-columns: 8em minmax(0, 1fr); gap: 2px 12px; margin: 4px 0 14px; }
th, td { white-space: nowrap; }
dt { color: var(--quiet); } dd { margin: 0; } h3 { font-size: 15px; margin: 14px 0 2px; }
code { font-size: 12.5px; overflow-wrap: anywhere; }
"""
)


def explain_page(document: Document) -> str:
    """The document of `ridgeline explain --json` as HTML; nothing is loaded from anywhere."""
    name = document["model"]["name"]
    lines = (request_line(document), machine_line(document), cache_line(document["kv_cache"]))
    body = f"""<h1>The path of one request through {_escaped(name)}</h1>
{_paragraphs(lines, "muted")}
{_paragraphs(list(warnings(document)), "bad")}
<h2>Where the time goes</h2>
<div id="waterfall"></div>
<div class="wide">{_document_table(PATH_COLUMNS, document["path"])}</div>
<h2>The roofline</h2>
<p class="muted">A dot's height is the speed reached, its place the work per byte from memory. Lines are what
the machine can do at most. Circles are prefill, diamonds decode; the large ones are whole phases.</p>
<div id="roofline"></div>
<div class="halves"><div>{_phase_table(document["phases"])}</div><div id="bytes"></div></div>
<div class="halves"><div id="batch"></div><div id="context"></div></div>
{_what_if(document.get("what_if", ()))}
<h2>Ops</h2>
<div class="wide">{_document_table(OP_COLUMNS, document["ops"])}</div>
<h2>Step by step, and how vLLM {_escaped(document["vllm"]["version"])} does it</h2>
{_walk(document)}"""
    return html_page(f"A request through {name}", body, EXPLAIN_SCRIPT, document, style=_STYLE)


def _paragraphs(lines: Sequence[str], style: str) -> str:
    return "\n".join(f'<p class="{style}">{_escaped(line)}</p>' for line in lines)


def _document_table(columns: Columns, documents: Sequence[Document]) -> str:
    return _table(list(columns), [[cell(document) for cell in columns.values()] for document in documents])


def _phase_table(phases: Document) -> str:
    rows = [[title, *phase_cells(title, phases)] for title in PHASE_ROWS]
    return f"<h3>Prefill and decode</h3>{_table(('', *phases), rows)}"


def _what_if(answers: Sequence[Document]) -> str:
    if not answers:
        return ""
    items = "".join(f"<li>{_escaped(answer_line(each))}</li>" for each in answers)
    return f"<h2>What if</h2><ul>{items}</ul>"


def _walk(document: Document) -> str:
    vllm = {each["step"]: each for each in document["vllm"]["steps"]}
    return "".join(
        f"<h3>{step['step']}: {milliseconds(step['seconds'])}, {percent(step['share'])}</h3><dl>"
        f"<dt>computes</dt><dd>{_escaped(step['computation'])}</dd>"
        f"<dt>measured</dt><dd>{_escaped(measured_line(step))}</dd>"
        f"<dt>would rule</dt><dd>{_escaped(step['bottleneck'])}</dd>"
        f"<dt>vLLM</dt><dd>{_escaped(vllm_line(vllm[step['step']]))}<br>"
        f"<code>{_sources(vllm[step['step']])}</code></dd></dl>"
        for step in document["path"]
    )


def _sources(step: Document) -> str:
    return ", ".join(_escaped(f"{each['path']}: {each['symbol']}") for each in step["sources"])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_escaped(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _escaped(value: object) -> str:
    return html.escape(str(value))
