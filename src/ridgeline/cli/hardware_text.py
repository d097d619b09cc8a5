"""Machines by name as text and JSON: all of them in a table, or one with the source of every figure."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ridgeline.perf.hardware import Source
from ridgeline.perf.hardware_entry import HardwareEntry
from ridgeline.perf.hardware_table import ALIASES, HARDWARE

_FORMATS = ("fp32", "fp16", "bf16", "int8", "fp8")


def show_hardware(console: Console) -> None:
    """Print the table of machines: memory, bandwidth and dense peaks in TFLOP/s."""
    table = Table("name", "kind", title="data sheets; dense peaks in TFLOP/s", title_justify="left")
    for column in ("GB", "GB/s", *_FORMATS):
        table.add_column(column, justify="right")
    for name, entry in HARDWARE.items():
        memory = (entry.memory_bytes / 1e9, entry.memory_bytes_per_s / 1e9)
        peaks = (_tflops(entry.peaks_flops_per_s.get(each)) for each in _FORMATS)
        table.add_row(name, entry.kind, *(f"{value:,.0f}" for value in memory), *peaks)
    console.print(table)
    aliases = ", ".join(f"{alias} = {name}" for alias, name in ALIASES.items())
    console.print(f"Short names: {aliases}", highlight=False)
    console.print("Sources: `ridgeline calibrate --hardware NAME` shows them.", highlight=False)


def show_entry(entry: HardwareEntry, console: Console) -> None:
    """Print one machine: each figure, where it stands."""
    console.print(f"[bold]{entry.title}[/bold] ({Source.DATA_SHEET})")
    table = Table("figure")
    table.add_column("value", justify="right")
    table.add_column("source")
    values = {
        "memory": f"{entry.memory_bytes / 1e9:,.0f} GB",
        "bandwidth": f"{entry.memory_bytes_per_s / 1e9:,.1f} GB/s",
        **{name: f"{_tflops(peak)} TFLOP/s" for name, peak in entry.peaks_flops_per_s.items()},
    }
    for figure, value in values.items():
        table.add_row(figure, value, entry.sources[figure])
    console.print(table)


def entry_document(entry: HardwareEntry) -> dict[str, object]:
    """One machine as JSON has it: bytes, bytes/s and FLOP/s, dense."""
    return {
        "name": entry.name,
        "title": entry.title,
        "kind": entry.kind.value,
        "source": Source.DATA_SHEET.value,
        "memory_bytes": entry.memory_bytes,
        "memory_bytes_per_s": entry.memory_bytes_per_s,
        "peaks_flops_per_s": dict(entry.peaks_flops_per_s),
        "sources": dict(entry.sources),
    }


def _tflops(peak: float | None) -> str:
    if peak is None:
        return "–"
    return f"{peak / 1e12:.1f}" if peak < 1e14 else f"{peak / 1e12:,.0f}"
