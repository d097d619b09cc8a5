"""`ridgeline bench report`: results of load runs as one page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ridgeline.cli.text_files import check_writable, read_lines, write_text
from ridgeline.dashboard.load_page import load_page
from ridgeline.dashboard.load_view import LoadPageRun
from ridgeline.errors import ConfigError
from ridgeline.loadgen.stored_result import StoredRun, need_records, stored_run, stored_runs


def report(*results: Path, html: Path) -> None:
    """Make one page of the results of one server, of one or many rates: curves, requests, tables.

    The files must hold every request: bench serve --save-detailed --json FILE.

    Example: ridgeline bench report rate-2.json rate-4.json rate-8.json --html load.html

    Parameters
    ----------
    results: Path
        JSON files of bench serve.
    html: Path
        Write the page to this file.
    """
    if not results:
        raise ConfigError("result", None, "give one or more JSON files of bench serve")
    check_writable(html=html)
    runs = read_results(results)
    write_text("html", html, load_page([page_run(run) for run in runs]))


def read_results(paths: Iterable[Path]) -> list[StoredRun]:
    """The runs of all files, each with the name of its file.

    Raises:
        ConfigError: a file can't be read, or holds no result.
    """
    return [run for path in paths for run in stored_runs(path.name, "\n".join(read_lines("result", path)))]


def run_page(name: str, document: Mapping[str, Any]) -> str:
    """The page of a run that was just made, with detail."""
    return load_page([page_run(stored_run(name, document))])


def page_run(run: StoredRun) -> LoadPageRun:
    """The same for a page.

    Raises:
        ConfigError: it has no requests.
    """
    return LoadPageRun(
        name=run.name,
        document=run.document,
        records=need_records(run),
        server_times={
            request["id"]: request["server"]
            for request in run.document["requests"]
            if isinstance(request.get("server"), dict)
        },
    )
