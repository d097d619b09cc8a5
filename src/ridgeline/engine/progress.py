"""ProgressBar: finished prompts of a batch, on a terminal only."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressBar:
    """A bar on stderr; silent when `shown` is false or stderr is no terminal."""

    def __init__(self, total: int, *, shown: bool) -> None:
        columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(
            *columns,
            console=Console(stderr=True),
            disable=not (shown and sys.stderr.isatty()),
            transient=True,
        )
        self._task = self._progress.add_task("prompts", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self) -> None:
        """One prompt more is finished."""
        self._progress.advance(self._task)
