"""What a terminal shows: while a run goes on, and after it."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from ridgeline.loadgen.console_report import dialect_count_lines, dialect_lines
from ridgeline.loadgen.progress import LoadProgress
from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.dialect_report import dialect_counts, dialect_report
from ridgeline.metrics.durations import Chunk


def record(first_s: float, gap_s: float, outcome: Outcome = Outcome.OK) -> ClientRecord:
    return ClientRecord(
        request_id="r",
        scheduled_at_s=0.0,
        sent_at_s=0.0,
        chunks=[Chunk(first_s, 1), Chunk(first_s + gap_s, 1)],
        outcome=outcome,
        closed_at_s=first_s + gap_s,
        num_output_tokens=2,
    )


def test_progress_has_the_percentiles_so_far() -> None:
    screen = io.StringIO()
    with LoadProgress(3, Console(file=screen, force_terminal=True, width=160)) as progress:
        assert "–" in progress.text
        progress.add(record(0.2, 0.01))
        progress.add(record(0.1, 0.03))
        progress.add(record(5.0, 5.0, Outcome.TRUNCATED))
    shown = re.fullmatch(
        r"TTFT p50/p99 (.+)/(.+) ms \(n 2\) · ITL p50/p99 (.+)/(.+) ms \(n 2\) · \[red\]1 failed\[/red\]",
        progress.text,
    )
    assert shown is not None, progress.text
    assert [float(each) for each in shown.groups()] == pytest.approx([150, 199, 20, 29.8], rel=0.005)
    assert "TTFT p50/p99" in screen.getvalue()


def test_no_terminal_no_progress() -> None:
    screen = io.StringIO()
    with LoadProgress(1, Console(file=screen)) as progress:
        progress.add(record(0.2, 0.01))
    assert screen.getvalue() == ""


def test_a_dialect_without_values_shows_a_dash() -> None:
    [line] = [line for line in dialect_lines(dialect_report([], "llama.cpp")) if "llama.cpp" in line]
    assert line.split()[2:6] == ["0", "–", "–", "–"]


def test_whom_each_tool_counts_is_shown_with_its_rules() -> None:
    counts = dialect_counts([record(0.2, 0.01)], "all", window_s=2.0, slos={"ttft": 1.0})
    lines = {line.split()[0]: line for line in dialect_count_lines(counts)[1:]}
    assert lines["vllm"].split()[1:5] == ["1", "0.50", "0.50", "–"]
    assert lines["ridgeline"].split()[1:6] == ["1", "0.50", "0.50", "100.0", "%"]
    assert "attainment's denominator" in lines["aiperf"]
