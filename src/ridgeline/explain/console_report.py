"""The explanation in a terminal; everything that colour says stands there in words too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ridgeline.explain.quantities import bytes_text, flops_text, milliseconds, number, percent, rate_text

Document = Mapping[str, Any]

_BOUND_STYLES = {"compute": "magenta", "memory": "cyan", "overhead": "yellow"}
_BAR_WIDTH = 20
_MAX_STEPS = 8


def print_explanation(document: Document, console: Console) -> None:
    """Print all of it, at any width from 80 columns on."""
    for each in _parts(document):
        console.print(each)


def _parts(document: Document) -> Iterator[RenderableType]:
    yield from _header(document)
    yield _title("The path of the request")
    yield _path(document)
    yield _title("Prefill and decode")
    yield _phases(document["phases"])
    yield _title("Steps")
    yield _steps(document["steps"])
    for phase in document["phases"]:
        ops = [each for each in document["ops"] if each["phase"] == phase]
        if ops:
            yield _title(f"Ops of {phase}")
            yield _ops(ops, document["phases"][phase]["seconds"])
    if document.get("what_if"):
        yield _title("What if")
        yield from map(_answer, document["what_if"])
    yield _title(f"Step by step, and how vLLM {document['vllm']['version']} does it")
    walk = {each["step"]: each for each in document["vllm"]["steps"]}
    for step in document["path"]:
        yield from _paragraphs(step, walk[step["step"]])


def _header(document: Document) -> Iterator[RenderableType]:
    model, hardware, request, cache = (document[k] for k in ("model", "hardware", "request", "kv_cache"))
    batch = document["regime"]["batch"]
    peaks = ", ".join(
        f"{name} {rate_text(rate, 'FLOP')}" for name, rate in hardware["peak_ops_per_s"].items()
    )
    caches = "".join(f", {c['name']} {rate_text(c['read_bytes_per_s'], 'B')}" for c in hardware["caches"])
    yield Text.assemble((model["name"], "bold"), f" · {bytes_text(model['weights_bytes'])} of weights")
    memory = rate_text(hardware["dram_bytes_per_s"], "B")
    yield Text(
        f"{hardware['cpu']}, {hardware['threads']} threads: memory {memory}{caches}; "
        f"products {peaks} ({hardware['source']})"
    )
    if not hardware["is_stable"]:
        yield Text("These ceilings are not certain: run `ridgeline calibrate` when the machine is quiet.")
    others = "" if batch == 1 else f", the last of {batch} alike"
    yield Text(
        f"{request['prompt_tokens']:,} prompt + {request['completion_tokens']:,} output tokens{others}: TTFT "
        f"{milliseconds(request['ttft_s'])}, TPOT {milliseconds(request['tpot_s'])}, in all "
        f"{milliseconds(request['e2e_s'])}"
    )
    yield Text(
        f"KV cache at its fullest: {cache['tokens_peak']:,} tokens in {cache['blocks_peak']:,} blocks of "
        f"{cache['block_size']} = {bytes_text(cache['allocated_bytes'])}, {cache['slack_tokens']} slots "
        f"empty; a token: {cache['bytes_per_token_formula']}"
    )
    yield Text.assemble("Answer: ", (_shortened(document["output"]["text"]), "italic"))


def _path(document: Document) -> Table:
    table = _table("step", "time", "share", "", "predicted", "runs", "waits for", left=(0, 3, 6))
    for step in document["path"]:
        bar = "█" * round(step["share"] * _BAR_WIDTH) or "▏"
        table.add_row(
            step["step"],
            milliseconds(step["seconds"]),
            percent(step["share"]),
            Text(bar, style=_BOUND_STYLES[step["bound"]]),
            milliseconds(step["predicted_s"]),
            f"{step['count']:,}",
            _bound(step["bound"]),
        )
    return table


def _phases(phases: Document) -> Table:
    table = _table("", *phases)
    for title, value in (
        ("tokens", lambda p: f"{p['tokens']:,}"),
        ("steps", lambda p: f"{p['steps']:,}"),
        ("time", lambda p: milliseconds(p["seconds"])),
        ("predicted before", lambda p: milliseconds(p["predicted_s"])),
        ("tokens/s", lambda p: number(p["tok_s"])),
        ("work", lambda p: flops_text(p["flops"])),
        ("bytes", lambda p: bytes_text(p["bytes"])),
        ("of these from memory", lambda p: bytes_text(p["dram_bytes"])),
        ("FLOP per byte", lambda p: number(p["intensity_flops_per_byte"])),
        ("FLOP per byte from memory", lambda p: number(p["dram_intensity_flops_per_byte"])),
        ("bound", lambda p: p["bound"]),
        ("least time: compute", lambda p: milliseconds(p["compute_s"])),
        ("least time: memory", lambda p: milliseconds(p["memory_s"])),
        ("of the roofline", lambda p: percent(p["roofline_fraction"])),
        ("kernels' share of the time", lambda p: percent(p["kernel_share"])),
    ):
        cells = [value(phase) if phase["steps"] else "–" for phase in phases.values()]
        table.add_row(title, *(_bound(cell) if title == "bound" and cell != "–" else cell for cell in cells))
    return table


def _steps(steps: Sequence[Document]) -> Table:
    table = _table("step", "computes", "context", "time", "predicted", "FLOP/B", "bound", "roof", left=(1, 6))
    for index in _shown(steps):
        step = steps[index]
        table.add_row(
            f"{index + 1}",
            _composition(step),
            f"{step['context']:,}",
            milliseconds(step["seconds"]),
            milliseconds(step["predicted_s"]),
            number(step["dram_intensity_flops_per_byte"]),
            _bound(step["bound"]),
            percent(step["roofline_fraction"]),
        )
    if len(steps) > _MAX_STEPS:
        table.caption = f"{_MAX_STEPS} of {len(steps):,}: the first, the slowest, the last; --json has all"
    return table


def _shown(steps: Sequence[Document]) -> list[int]:
    """First, last and slowest ones, in order."""
    if len(steps) <= _MAX_STEPS:
        return list(range(len(steps)))
    by_time = sorted(range(3, len(steps) - 1), key=lambda index: -steps[index]["seconds"])
    return sorted([0, 1, 2, len(steps) - 1, *by_time[: _MAX_STEPS - 4]])


def _composition(step: Document) -> str:
    parts = []
    if step["prefill_tokens"]:
        parts.append(f"{step['prefill_tokens']:,} of prompts")
    if step["decode_tokens"]:
        parts.append(f"{step['decode_tokens']:,} decoded")
    return " + ".join(parts)


def _ops(ops: Sequence[Document], phase_s: float) -> Table:
    columns = ("op", "ms", "share", "predicted", "MFLOP", "MB", "FLOP/B", "bound", "roof")
    table = _table(*columns, left=(0, 7))
    table.padding = (0, 0)  # ten columns on eighty characters
    for op in ops:
        predicted_s = op["predicted_s"]
        table.add_row(
            op["op"],
            number(1e3 * op["seconds"]),
            percent(op["seconds"] / phase_s),
            number(None if predicted_s is None else 1e3 * predicted_s),
            number(op["flops"] / 1e6),
            number(op["dram_bytes"] / 1e6),
            number(op["dram_intensity_flops_per_byte"]),
            _bound(op["bound"]),
            percent(op["roofline_fraction"]) if op["bound_s"] else "–",
        )
    return table


def _answer(answer: Document) -> RenderableType:
    line = f"{answer['phase']}: {answer['sentence']}"
    checked = answer["checked"]
    if checked is not None:
        line += f"; a real run took {milliseconds(checked['measured_s'])} ({100 * checked['error']:+.0f} %)"
    return Padding(Text(line), (0, 0, 0, 2))


def print_comparison(document: Document, console: Console) -> None:
    """Print what `comparison` found."""
    for name, run in zip("AB", document["runs"], strict=True):
        console.print(
            f"{name}: {run['model']} on {run['cpu']}, {run['threads']} threads; batch {run['batch']}, "
            f"{run['prompt_tokens']:,} prompt + {run['completion_tokens']:,} output tokens, "
            f"{milliseconds(run['e2e_s'])}"
        )
    console.print(_title("The path"))
    table = _table("step", "A", "B", "B / A")
    for step in document["path"]:
        table.add_row(step["step"], *map(milliseconds, step["seconds"]), number(step["ratio"]))
    console.print(table)
    for title, rows in (("Phases", document["phases"]), ("Ops", document["ops"])):
        console.print(_title(f"{title}: seconds, and what moved them"))
        console.print(_differences(rows))


def _differences(rows: Sequence[Document]) -> Table:
    table = _table("", "A", "B", "B / A", "mostly because of", left=(0, 4))
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
        ("measured", _measured(step)),
        ("would rule", step["bottleneck"]),
        ("vLLM", f"{vllm['where']}. {vllm['how']}"),
    ):
        line = Table.grid(padding=(0, 1))
        line.add_column(no_wrap=True, width=10)
        line.add_column(overflow="fold")
        line.add_row(Text(label, style="dim"), Text(text))
        yield Padding(line, (0, 0, 0, 2))


def _measured(step: Document) -> str:
    parts = [f"{name} {milliseconds(seconds)}" for name, seconds in step["parts"].items()]
    measured = ", ".join(parts)
    if not step["bytes"]:
        return measured
    return (
        f"{measured}; {flops_text(step['flops'])} and {bytes_text(step['bytes'])}, "
        f"{number(step['intensity_flops_per_byte'])} FLOP/B: bound by {step['bound']}, "
        f"{percent(step['roofline_fraction'])} of the roofline"
    )


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold underline")


def _table(*columns: str, left: Sequence[int] = (0,)) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index in left else "right", no_wrap=True)
    return table


def _bound(bound: str) -> Text:
    return Text(bound, style=_BOUND_STYLES[bound])


def _shortened(text: str, limit: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
