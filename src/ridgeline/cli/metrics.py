"""`ridgeline metrics`: what the numbers mean."""

from __future__ import annotations

from dataclasses import asdict

from cyclopts import App
from rich.console import Console
from rich.table import Table

from ridgeline.cli.json_output import JsonTarget, check_target, write_json
from ridgeline.metrics.definitions import DEFINITIONS, Definition, find_definition


def new_app() -> App:
    """The commands of `ridgeline metrics`."""
    app = App(name="metrics", help="What each metric means, and how other tools differ.")
    app.command(explain)
    return app


def explain(name: str | None = None, *, json: JsonTarget = None) -> None:
    """Print a metric's formula, unit, when it is undefined, and what other tools mean by it.

    Parameters
    ----------
    name
        The metric, as ttft or tpot; without it all are listed.
    json
        Write it as JSON to this file, or to stdout for -.
    """
    check_target(json)
    chosen = list(DEFINITIONS.values()) if name is None else [find_definition(name)]
    if json is not None:
        write_json(json, [asdict(each) for each in chosen] if name is None else asdict(chosen[0]))
        return
    console = Console()
    if name is None:
        console.print(_list(chosen))
    else:
        _show(chosen[0], console)


def _list(definitions: list[Definition]) -> Table:
    table = Table("metric", "is", "formula", box=None)
    for each in definitions:
        table.add_row(each.name, each.title, each.formula)
    return table


def _show(definition: Definition, console: Console) -> None:
    console.print(f"[bold]{definition.name}[/bold]: {definition.title}", highlight=False)
    table = Table(show_header=False, box=None)
    table.add_row("formula", definition.formula)
    table.add_row("unit", definition.unit)
    table.add_row("undefined", f"{definition.undefined}: null, never 0")
    table.add_row("note", definition.note)
    for tool, text in definition.others.items():
        table.add_row(tool, text)
    console.print(table, highlight=False)
