"""`ridgeline pull`: fetch a model into the cache."""

from __future__ import annotations

import sys
from typing import Annotated

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from ridgeline.cli.options import Flag
from ridgeline.config.env import home_dir
from ridgeline.errors import RequestError
from ridgeline.hub.catalogue import CATALOGUE
from ridgeline.hub.progress import PullProgress
from ridgeline.hub.pull import pull as pull_model


def pull(name: str | None = None, /, *, list_: Annotated[bool, Flag] = False) -> None:
    """Fetch a model into the cache ($RIDGELINE_HOME, else the user's cache directory).

    Example: ridgeline pull smollm2-135m-instruct

    Parameters
    ----------
    name: str
        A catalogue name, or hf:org/repo[:file] where a hub is reachable.
    list_: bool
        List the catalogue instead.
    """
    if list_:
        for entry in CATALOGUE.values():
            print(f"{entry.name}  {entry.size_bytes / 1e6:.0f} MB  {entry.licence}")
        return
    if name is None:
        raise RequestError("name", None, "say which model to pull; pull --list shows the catalogue")
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    ) as bar:
        task = bar.add_task(name, total=None)

        def show(progress: PullProgress) -> None:
            bar.update(
                task,
                description=progress.status,
                completed=progress.done_bytes,
                total=progress.total_bytes,
            )

        result = pull_model(name, home_dir(), progress=show)
    print(f"{name}: {'already there' if result.was_present else 'fetched'}: {result.path}")
