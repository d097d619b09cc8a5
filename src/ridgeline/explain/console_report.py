"""The explanation in a terminal; everything that colour says stands there in words too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ridgeline.dashboard.explain_view import (
    OP_COLUMNS,
    PATH_COLUMNS,
    PHASE_ROWS,
    STEP_COLUMNS,
    Columns,
    answer_line,
    cache_line,
    machine_line,
    measured_line,
    model_line,
    phase_cells,
    request_line,
    shown_steps,
    vllm_line,
    warnings,
)
from ridgeline.perf.quantities import milliseconds, number, percent

Document = Mapping[str, Any]

_BOUND_STYLES = {"compute": "magenta", "memory": "cyan", "overhead": "yellow"}
_BAR = ""
_BAR_WIDTH = 20
_MAX_STEPS = 8
_LEFT = ("step", "op", "computes", "waits for", _BAR)
_PATH_HEADS = ("step", "time", "share", _BAR, "predicted", "runs", "waits for")
_OP_HEADS = ("op", "time", "share", "predicted", "FLOP", "bytes", "FLOP/B", "waits for", "roof")


def print_explanation(document: Document, console: Console) -> None:
    """Print all of it, at any width from 80 columns on."""
    for each in _parts(document):
        console.print(each)


def _parts(document: Document) -> Iterator[RenderableType]:
    yield from _header(document)
    yield _title("The path of the request")
    yield _path(document["path"])
    yield _title("Prefill and decode")
    yield _phases(document["phases"])
    yield _title("Steps")
    yield _steps(document["steps"])
    for phase in document["phases"]:
        ops = [each for each in document["ops"] if each["phase"] == phase]
        if ops:
            yield _title(f"Ops of {phase}")
            yield _ops(ops)
    if document.get("what_if"):
        yield _title("What if")
        for answer in document["what_if"]:
            yield Padding(Text(answer_line(answer)), (0, 0, 0, 2))
    yield _title(f"Step by step, and how vLLM {document['vllm']['version']} does it")
    walk = {each["step"]: each for each in document["vllm"]["steps"]}
    for step in document["path"]:
        yield from _paragraphs(step, walk[step["step"]])


def _header(document: Document) -> Iterator[RenderableType]:
    yield Text(model_line(document), style="bold")
    yield Text(machine_line(document))
    yield Text(request_line(document))
    yield Text(cache_line(document["kv_cache"]))
    for warning in warnings(document):
        yield Text(warning, style="yellow")
    yield Text.assemble("Answer: ", (_shortened(document["output"]["text"]), "italic"))


def _path(path: Sequence[Document]) -> Table:
    table = _table(_PATH_HEADS)
    for step in path:
        bar = "█" * round(step["share"] * _BAR_WIDTH) or "▏"
        cells = _cells(PATH_COLUMNS, [head for head in _PATH_HEADS if head != _BAR], step)
        at = _PATH_HEADS.index(_BAR)
        table.add_row(*cells[:at], Text(bar, style=_BOUND_STYLES[step["bound"]]), *cells[at:])
    return table


def _phases(phases: Document) -> Table:
    table = _table(("", *phases))
    table.columns[0].justify = "left"
    for title in PHASE_ROWS:
        table.add_row(title, *map(_coloured, phase_cells(title, phases)))
    return table


def _steps(steps: Sequence[Document]) -> Table:
    table = _table(("step", *STEP_COLUMNS))
    table.columns[0].justify = "right"
    table.columns[1].no_wrap = False
    for index in shown_steps(steps, _MAX_STEPS):
        table.add_row(f"{index + 1}", *_cells(STEP_COLUMNS, list(STEP_COLUMNS), steps[index]))
    if len(steps) > _MAX_STEPS:
        table.caption = f"{_MAX_STEPS} of {len(steps):,}: the first, the slowest, the last; --json has all"
    return table


def _ops(ops: Sequence[Document]) -> Table:
    table = _table(_OP_HEADS)
    table.padding = (0, 0)  # nine columns on eighty characters
    for op in ops:
        table.add_row(*_cells(OP_COLUMNS, _OP_HEADS, op))
    return table


def print_comparison(document: Document, console: Console) -> None:
    """Print what `comparison` found."""
    for name, run in zip("AB", document["runs"], strict=True):
        console.print(
            f"{name}: {run['model']} on {run['cpu']}, {run['threads']} threads; batch {run['batch']}, "
            f"{run['prompt_tokens']:,} prompt + {run['completion_tokens']:,} output tokens, "
            f"{milliseconds(run['e2e_s'])}"
        )
    console.print(_title("The path"))
    table = _table(("step", "A", "B", "B / A"))
    for step in document["path"]:
        table.add_row(step["step"], *map(milliseconds, step["seconds"]), number(step["ratio"]))
    console.print(table)
    for title, rows in (("Phases", document["phases"]), ("Ops", document["ops"])):
        console.print(_title(f"{title}: seconds, and what moved them"))
        console.print(_differences(rows))


def _differences(rows: Sequence[Document]) -> Table:
    table = _table(("", "A", "B", "B / A", "mostly because of"))
    for column in (table.columns[0], table.columns[4]):
        column.justify = "left"
    table.columns[4].no_wrap = False
    for row in rows:
        cause = row["cause"]
        table.add_row(
            " ".join(filter(None, (row["phase"], row.get("op")))),
            *map(milliseconds, row["seconds"]),
            number(row["ratio"]),
            f"{cause} × {number(row['factors'][cause])}" if cause else "–",
        )
    return table


def _paragraphs(step: Document, vllm: Document) -> Iterator[RenderableType]:
    took = f"{milliseconds(step['seconds'])}, {percent(step['share'])}"
    yield Text.assemble((step["step"], "bold"), f"  {took}")
    for label, text in (
        ("computes", step["computation"]),
        ("measured", measured_line(step)),
        ("would rule", step["bottleneck"]),
        ("vLLM", vllm_line(vllm)),
    ):
        line = Table.grid(padding=(0, 1))
        line.add_column(no_wrap=True, width=10)
        line.add_column(overflow="fold")
        line.add_row(Text(label, style="dim"), Text(text))
        yield Padding(line, (0, 0, 0, 2))


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold underline")


def _table(heads: Sequence[str]) -> Table:
    """A column a head; words to the left, figures to the right."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, caption_justify="left")
    for head in heads:
        table.add_column(head, justify="left" if head in _LEFT else "right", no_wrap=True)
    return table


def _cells(columns: Columns, heads: Sequence[str], document: Document) -> list[Text]:
    return [_coloured(columns[head](document)) for head in heads]


def _coloured(cell: str) -> Text:
    """A bound in its colour, anything else as it is."""
    return Text(cell, style=_BOUND_STYLES.get(cell, ""))


def _shortened(text: str, limit: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
