"""`ridgeline calibrate`: what this machine can do at most, measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from ridgeline.bench import calibrate as calibration
from ridgeline.cli.hardware_text import entry_document, show_entry, show_hardware
from ridgeline.cli.json_output import JsonTarget, check_target, write_json
from ridgeline.config.checks import check_at_least
from ridgeline.config.engine import MAX_NUM_THREADS
from ridgeline.config.env import home_dir
from ridgeline.config.machine import cpu_limits
from ridgeline.engine.machine_profile import hardware_key
from ridgeline.errors import ConfigError
from ridgeline.hub.hardware_store import load_hardware
from ridgeline.perf.hardware import UNCERTAIN, HardwareProfile
from ridgeline.perf.hardware_entry import HardwareEntry
from ridgeline.perf.hardware_table import find_hardware

_SHOWN_TOKENS = (1, 8, 64, 512)


def calibrate(
    *,
    short: Annotated[bool, Parameter(negative="")] = False,
    threads: int | None = None,
    hardware: str | None = None,
    list_hardware: Annotated[bool, Parameter(negative="")] = False,
    json: JsonTarget = None,
) -> None:
    """Measure memory, caches, kernels and overheads, and keep the result for `explain`, `plan` and `serve`.

    Example: ridgeline calibrate --short

    Parameters
    ----------
    short
        Take 3 s instead of 20: fewer rounds and formats.
    threads
        Threads to measure with; by default as many as the engine takes.
    hardware
        Measure nothing, but show the data sheet of a machine by name, with every figure's source.
    list_hardware
        List the machines that --hardware knows, and end.
    json
        Write the measurement or data sheet as JSON to this file, or to stdout for -.
    """
    check_target(json)
    console = Console(stderr=json == "-")
    if list_hardware:
        show_hardware(console)
        return
    if hardware is not None:
        _show_data_sheet(find_hardware(hardware), json, console)
        return
    num_threads = _num_threads(threads)
    profile = calibration.calibrate(
        calibration.default_shape(),
        num_threads,
        calibration.SHORT_PLAN if short else calibration.LONG_PLAN,
        report=lambda line: print(line, file=sys.stderr) if sys.stderr.isatty() else None,
    )
    path = calibration.keep(home_dir(), profile)
    if json is not None:
        write_json(json, load_hardware(hardware_key(num_threads), home_dir()))
    if json != "-":
        show(profile, path, console)


def show(profile: HardwareProfile, path: Path, console: Console) -> None:
    """Print a profile: ceilings with the range seen, kernels by format, overheads, and what disturbed."""
    console.print(f"[bold]{profile.name}[/bold], {profile.num_threads} threads ({profile.source})")
    console.print(_ceilings(profile))
    console.print(_kernels(profile))
    console.print(_overheads(profile))
    for note in profile.notes:
        console.print(f"· {note}", markup=False, highlight=False)
    if not profile.is_stable:
        console.print(UNCERTAIN, highlight=False)
    console.print(f"Kept in {path}", markup=False, highlight=False, soft_wrap=True)


def _show_data_sheet(entry: HardwareEntry, json: str | None, console: Console) -> None:
    if json is not None:
        write_json(json, entry_document(entry))
    if json != "-":
        show_entry(entry, console)


def _num_threads(threads: int | None) -> int:
    if threads is None:
        return cpu_limits().num_threads
    check_at_least("threads", threads, 1)
    if threads > MAX_NUM_THREADS:
        raise ConfigError("threads", threads, f"at most {MAX_NUM_THREADS}")
    return threads


def _ceilings(profile: HardwareProfile) -> Table:
    table = Table("ceiling", title="Best of the rounds, and the range seen", title_justify="left")
    for column in ("best", "slowest round", "spread"):
        table.add_column(column, justify="right")
    for name, rate, unit in _rates(profile):
        low = profile.spread[name][0] if name in profile.spread else rate
        table.add_row(_title(name, profile), _rate(rate, unit), _rate(low, unit), f"{rate / low - 1:.0%}")
    return table


def _rates(profile: HardwareProfile) -> Iterator[tuple[str, float, str]]:
    for threads, rate in profile.dram_bytes_per_s_by_threads.items():
        yield f"dram {threads}", rate, "B/s"
    for level in profile.caches:
        yield level.name, level.read_bytes_per_s, "B/s"
    yield "attention", profile.attention_flops_per_s, "FLOP/s"


def _title(name: str, profile: HardwareProfile) -> str:
    if name.startswith("dram "):
        threads = int(name.removeprefix("dram "))
        return f"memory read, {threads} {'thread' if threads == 1 else 'threads'}"
    if name == "attention":
        return "attention, K and V in caches"
    level = next(level for level in profile.caches if level.name == name)
    return f"{name} read ({level.size_bytes / 2**20:g} MiB in all)"


def _rate(value: float, unit: str) -> str:
    return f"{value / 1e9:.1f} G{unit}"


def _kernels(profile: HardwareProfile) -> Table:
    counts = [c for c in _SHOWN_TOKENS if all(c in dict(p) for p in profile.matmul_flops_per_s.values())]
    table = Table("products, GFLOP/s", *(_tokens(count) for count in counts))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, points in profile.matmul_flops_per_s.items():
        rates = dict(points)
        table.add_row(name, *(f"{rates[count] / 1e9:.0f}" for count in counts))
    return table


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _overheads(profile: HardwareProfile) -> Table:
    table = Table("overhead")
    table.add_column("time", justify="right")
    titles = {
        "barrier": "a job handed to all threads and back",
        "call": "a native call from Python",
        "step": "a step of one request outside its ops",
    }
    for name, seconds in profile.overheads_s.items():
        table.add_row(titles.get(name, name), f"{seconds * 1e6:.2f} µs")
    return table
