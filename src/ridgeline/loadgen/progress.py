"""A line on a terminal while a run goes on: what is done, and the percentiles so far."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ridgeline.metrics.client_record import ClientRecord, Outcome
from ridgeline.metrics.durations import itl_s, ttft_s
from ridgeline.metrics.live_histogram import LiveHistogram

REFRESH_S = 0.5
"""Drawing takes a millisecond or two of the event loop: seldom enough to leave the instants alone."""


class LoadProgress:
    """Shows records as they come, on `console`; nothing where that is no terminal."""

    def __init__(self, total: int, console: Console) -> None:
        self._total = total
        self._ttfts_ms = LiveHistogram()
        self._itls_ms = LiveHistogram()
        self._num_failed = self._num_taken = 0
        self._drawn_at_s = float("-inf")
        self._progress = Progress(
            TextColumn("requests"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> LoadProgress:
        """Start."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Clear the line."""
        self._progress.stop()

    def add(self, record: ClientRecord) -> None:
        """Take one more record, and draw if it is time."""
        if record.outcome is not Outcome.OK:
            self._num_failed += 1
        else:
            first_s = ttft_s(record)
            if first_s is not None:
                self._ttfts_ms.add(1000 * first_s)
            for gap_s in itl_s(record):
                self._itls_ms.add(1000 * gap_s)
        self._num_taken += 1
        now = record.closed_at_s or 0.0
        if now - self._drawn_at_s >= REFRESH_S:
            self._drawn_at_s = now
            self._progress.update(self._task, completed=self._num_taken, description=self.text)
            self._progress.refresh()

    @property
    def text(self) -> str:
        """TTFT and ITL at P50 and P99 so far, to 0.4 %, and failures."""
        parts = [f"TTFT {_pair(self._ttfts_ms)}", f"ITL {_pair(self._itls_ms)}"]
        if self._num_failed:
            parts.append(f"[red]{self._num_failed} failed[/red]")
        return " · ".join(parts)


def _pair(values_ms: LiveHistogram) -> str:
    p50, p99 = values_ms.percentile(50), values_ms.percentile(99)
    if p50 is None or p99 is None:
        return "p50/p99 –"
    return f"p50/p99 {p50:.1f}/{p99:.1f} ms (n {values_ms.n})"
