"""Models on the Hugging Face hub, through the huggingface_hub library (loaded when first needed)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from ridgeline.errors import DownloadError
from ridgeline.hub.hub_name import HUB_PREFIX, HubName, is_model_file
from ridgeline.hub.progress import ProgressCallback, PullProgress

_MAX_LISTED_FILES = 12
_MAX_REASON = 200


def only_model_file(repo_id: str) -> str:
    """The one .gguf file of a repository. Raises DownloadError that lists them when there are more."""
    import huggingface_hub

    with _hub_failures(repo_id):
        files = [file for file in huggingface_hub.list_repo_files(repo_id) if is_model_file(file)]
    if len(files) == 1:
        return files[0]
    if not files:
        raise DownloadError(f"{repo_id} on the hub holds no .gguf file")
    listed = ", ".join(files[:_MAX_LISTED_FILES]) + (", …" if len(files) > _MAX_LISTED_FILES else "")
    raise DownloadError(
        f"{repo_id} holds {len(files)} models; name one as {HUB_PREFIX}{repo_id}:FILE of {listed}"
    )


def fetch(hub_name: HubName, scratch: Path, report: ProgressCallback) -> Path:
    """The file inside `scratch`; the library checks its size. Raises DownloadError."""
    import huggingface_hub

    assert hub_name.file is not None
    report(PullProgress(f"downloading {hub_name}"))
    with _hub_failures(str(hub_name)):
        return Path(huggingface_hub.hf_hub_download(hub_name.repo_id, hub_name.file, local_dir=scratch))


@contextlib.contextmanager
def _hub_failures(what: str) -> Iterator[None]:
    """Turn whatever the library raises into a DownloadError of one line; its own log lines are muted."""
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    from huggingface_hub import errors

    # Besides its own errors the library lets those of its HTTP library through, which changed between
    # versions; its HTTP error derives from the root of whichever it uses.
    own_errors = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    anything = tuple(
        kind
        for kind in (*own_errors, *errors.HfHubHTTPError.__bases__, OSError, ValueError, RuntimeError)
        if issubclass(kind, Exception)
    )
    remedies: dict[type[Exception], str] = {
        errors.GatedRepoError: "accept its terms on huggingface.co and log in with `hf auth login`",
        errors.RepositoryNotFoundError: "no such repository, or a private one (`hf auth login`)",
        errors.LocalEntryNotFoundError: "the hub can't be reached; check the network",
        errors.EntryNotFoundError: "the repository holds no such file",
    }
    try:
        yield
    except anything as error:
        known = next((text for kind, text in remedies.items() if isinstance(error, kind)), None)
        reason = " ".join(str(error).split())[:_MAX_REASON]
        text = known or f"{reason or type(error).__name__}; check the network and pull again"
        raise DownloadError(f"{what} could not be fetched: {text}") from error
