"""The model cache: where files lie, which are there, and how one gets in whole or not at all.

::

    <home>/models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf    a catalogue name
    <home>/models/hf--org--repo/sub/file.gguf                              hf:org/repo:sub/file.gguf
    <home>/models/<name>/.pull-xxxx/                                       a pull at work, or cut short
    <home>/models/.<name>.lock                                             held while <name> changes
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import ModelFileError, ModelNotFoundError, RequestError
from ridgeline.hub.catalogue import CATALOGUE, CatalogueEntry
from ridgeline.hub.hub_name import HUB_PREFIX, MODEL_SUFFIX, HubName, is_model_file, parse_hub_name

_HUB_DIRECTORY_PREFIX = "hf--"
_SCRATCH_PREFIX = ".pull-"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A file in the cache under the name that `resolve_model` finds it by."""

    name: str
    path: Path
    size_bytes: int


def catalogue_path(entry: CatalogueEntry, home: Path) -> Path:
    """Where a catalogue model lies once it is pulled."""
    return model_directory(entry.name, home) / entry.file_name


def hub_path(hub_name: HubName, home: Path) -> Path:
    """Where a hub file lies once it is pulled; `hub_name.file` must be set."""
    assert hub_name.file is not None
    return hub_directory(hub_name, home) / hub_name.file


def hub_directory(hub_name: HubName, home: Path) -> Path:
    """The directory of one repository; unambiguous, for the hub forbids `--` in names."""
    return model_directory(_HUB_DIRECTORY_PREFIX + hub_name.repo_id.replace("/", "--"), home)


def model_directory(name: str, home: Path) -> Path:
    """The directory in the cache that is locked and cleaned as one."""
    return home / "models" / name


def list_models(home: Path) -> list[CachedModel]:
    """Every model file in the cache, sorted by name; empty when there is no cache."""
    models = home / "models"
    found = []
    for directory, subdirectories, files in os.walk(models):
        # Hidden directories are pulls at work.
        subdirectories[:] = [name for name in subdirectories if not name.startswith(".")]
        for path in (Path(directory, file) for file in files if is_model_file(file)):
            if not path.is_file():  # a link to nowhere
                continue
            found.append(CachedModel(_name_of(path, models), path, path.stat().st_size))
    return sorted(found, key=lambda model: model.name)


def cached_models(name: str, home: Path) -> list[CachedModel]:
    """What `name` may mean of `list_models`: the model of that name, or all files of an `hf:org/repo`."""
    prefix = f"{name}:" if name.startswith(HUB_PREFIX) else None
    return [
        model
        for model in list_models(home)
        if model.name == name or (prefix and model.name.startswith(prefix))
    ]


def resolve_model(name_or_path: str | Path, home: Path) -> Path:
    """The file that a catalogue name, a path or a cached hub name stands for; nothing is fetched.

    Raises:
        ModelNotFoundError: it isn't there; the remedy says how to get it or which names are known.
        ModelFileError: a catalogue model in the cache doesn't have its size.
    """
    name = str(name_or_path)
    if name in CATALOGUE:
        return _resolve_entry(CATALOGUE[name], home)
    if name.startswith(HUB_PREFIX):
        return _resolve_hub_name(name, home)
    if os.path.isfile(name):
        return Path(name)
    raise unknown_model(name, home)


def remove_model(name: str, home: Path) -> list[CachedModel]:
    """Delete what `cached_models` finds under `name`; says what went.

    Raises ModelNotFoundError when that is nothing. A name is only compared, never made into a path.
    """
    models = cached_models(name, home)
    if not models:
        is_known = name in CATALOGUE or name.startswith(HUB_PREFIX)
        raise ModelNotFoundError(name, "is not cached") if is_known else unknown_model(name, home)
    directory = model_directory(models[0].path.relative_to(home / "models").parts[0], home)
    with locked(directory):
        _remove_stale_scratch(directory)
        for model in models:
            model.path.unlink(missing_ok=True)
            _remove_empty_directories(model.path.parent, directory)
    return models


def unknown_model(name: str, home: Path) -> ModelNotFoundError:
    """The error for a name that means nothing here, with the closest one that does."""
    if os.path.isdir(name):
        return ModelNotFoundError(name, f"is a directory; give the {MODEL_SUFFIX} file in it")
    if "/" in name or is_model_file(name):
        return ModelNotFoundError(name, "there is no such file")
    known = [*CATALOGUE, *(model.name for model in list_models(home) if model.name not in CATALOGUE)]
    close = difflib.get_close_matches(name.lower()[:100], known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    names = ", ".join(known)
    return ModelNotFoundError(name, f"{hint}known: {names}; or give a {MODEL_SUFFIX} file or hf:org/repo")


@contextlib.contextmanager
def locked(directory: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of one model's directory among all threads and processes; `on_wait` if it is taken.

    The lock file stays: deleting it would let a waiting process lock a file that is no longer there.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(f".{directory.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def scratch_directory(directory: Path) -> Iterator[Path]:
    """A new directory inside `directory`, gone afterwards; sweeps up what cut-off pulls left.

    Under the lock only: any other scratch directory is then nobody's.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _remove_stale_scratch(directory)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=directory))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _remove_empty_directories(directory, directory)


def install(file: Path, target: Path) -> None:
    """Move a finished file to its place, so that a reader sees the old one or the whole new one.

    Both lie in the same file system; the bytes reach the disk before the name does.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _sync(file)
    os.replace(file, target)
    _sync(target.parent)


def _resolve_entry(entry: CatalogueEntry, home: Path) -> Path:
    path = catalogue_path(entry, home)
    if not path.is_file():
        raise ModelNotFoundError(entry.name, f"not here yet; run `ridgeline pull {entry.name}`")
    size_bytes = path.stat().st_size
    if size_bytes != entry.size_bytes:
        problem = f"has {size_bytes} bytes, should have {entry.size_bytes}"
        raise ModelFileError(path, problem, f"run `ridgeline pull {entry.name}` again")
    return path


def _resolve_hub_name(name: str, home: Path) -> Path:
    try:
        models = cached_models(str(parse_hub_name(name)), home)
    except RequestError as error:
        raise ModelNotFoundError(name, error.remedy) from error
    if not models:
        raise ModelNotFoundError(name, f"not here yet; run `ridgeline pull {name}`")
    if len(models) > 1:
        choices = ", ".join(model.name for model in models)
        raise ModelNotFoundError(name, f"several files are cached; name one: {choices}")
    return models[0].path


def _name_of(path: Path, models: Path) -> str:
    directory, *rest = path.relative_to(models).parts
    entry = CATALOGUE.get(directory)
    if entry is not None and rest == [entry.file_name]:
        return entry.name
    if directory.startswith(_HUB_DIRECTORY_PREFIX):
        repo_id = directory.removeprefix(_HUB_DIRECTORY_PREFIX).replace("--", "/")
        return str(HubName(repo_id, "/".join(rest)))
    return str(path)


def _remove_stale_scratch(directory: Path) -> None:
    for path in directory.glob(f"{_SCRATCH_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def _remove_empty_directories(directory: Path, last: Path) -> None:
    """Remove `directory` and its parents up to `last`, as far as they are empty."""
    with contextlib.suppress(OSError):
        directory.rmdir()
        if directory != last:
            _remove_empty_directories(directory.parent, last)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
