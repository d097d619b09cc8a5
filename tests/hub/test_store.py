"""The cache: what is there, what a name stands for, and that nothing else is touched."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ridgeline.errors import ModelFileError, ModelNotFoundError
from ridgeline.hub.hub_name import HubName
from ridgeline.hub.store import (
    CachedModel,
    catalogue_path,
    hub_path,
    install,
    list_models,
    locked,
    remove_model,
    resolve_model,
    scratch_directory,
)


def put(path: Path, content: bytes = b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def filled(home, entry):
    """A cache with the catalogue model and three hub files of two repositories."""
    put(catalogue_path(entry, home), bytes(entry.size_bytes))
    put(hub_path(HubName("org/repo", "a.gguf"), home))
    put(hub_path(HubName("org/repo", "sub/b.gguf"), home))
    put(hub_path(HubName("org/repo2", "c.gguf"), home), b"12345")
    return home


def names(home: Path) -> list[str]:
    return [model.name for model in list_models(home)]


def test_an_absent_cache_is_empty(home):
    assert list_models(home) == []


def test_models_are_listed_under_names_that_resolve_to_them(filled, entry):
    models = list_models(filled)
    assert [model.name for model in models] == [
        "hf:org/repo2:c.gguf",
        "hf:org/repo:a.gguf",
        "hf:org/repo:sub/b.gguf",
        "tiny-model",
    ]
    assert all(resolve_model(model.name, filled) == model.path for model in models)
    assert [model.size_bytes for model in models] == [5, 4, 4, entry.size_bytes]


def test_files_put_there_by_hand_are_listed_by_path(filled):
    path = put(filled / "models" / "mine" / "x.gguf")
    assert CachedModel(str(path), path, 4) in list_models(filled)
    assert resolve_model(str(path), filled) == path


def test_pulls_at_work_locks_and_other_files_are_not_listed(filled):
    before = names(filled)
    put(filled / "models" / "tiny-model" / ".pull-abc" / "tiny.gguf")
    put(filled / "models" / "tiny-model" / "README.md")
    put(filled / "models" / ".tiny-model.lock")
    assert names(filled) == before


def test_layout(home, entry):
    assert catalogue_path(entry, home) == home / "models" / "tiny-model" / "tiny.gguf"
    assert hub_path(HubName("o/r", "s/f.gguf"), home) == home / "models" / "hf--o--r" / "s" / "f.gguf"


# resolve_model
def test_a_path_is_taken_as_it_is(home, tmp_path):
    path = put(tmp_path / "own.gguf")
    assert resolve_model(path, home) == path
    assert resolve_model(str(path), home) == path


def test_a_catalogue_name_that_is_not_here_tells_how_to_get_it(home, entry):
    with pytest.raises(ModelNotFoundError, match="ridgeline pull tiny-model"):
        resolve_model("tiny-model", home)


def test_a_cached_model_of_the_wrong_size_is_a_broken_file(home, entry):
    path = put(catalogue_path(entry, home), b"GGUF")
    message = r"has 4 bytes, should have 1280004; run `ridgeline pull tiny-model` again"
    with pytest.raises(ModelFileError, match=message) as caught:
        resolve_model("tiny-model", home)
    assert caught.value.path == path


def test_a_hub_name_without_file_stands_for_the_only_one_cached(filled):
    assert resolve_model("hf:org/repo2", filled) == hub_path(HubName("org/repo2", "c.gguf"), filled)
    with pytest.raises(ModelNotFoundError, match=r"hf:org/repo:a\.gguf, hf:org/repo:sub/b\.gguf"):
        resolve_model("hf:org/repo", filled)


def test_a_hub_name_that_is_not_here_tells_how_to_get_it(home):
    with pytest.raises(ModelNotFoundError, match=r"ridgeline pull hf:org/repo:x\.gguf"):
        resolve_model("hf:org/repo:x.gguf", home)


@pytest.mark.parametrize("name", ["hf:", "hf:repo", "hf:../..", "hf:org/repo:../x.gguf"])
def test_a_malformed_hub_name_is_no_model(home, name):
    with pytest.raises(ModelNotFoundError, match="hf:org/repo"):
        resolve_model(name, home)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("tiny", "tiny-model"), ("Tiny_Model", "tiny-model"), ("othermodel", "other-model")],
)
def test_a_near_miss_gets_a_suggestion(home, entry, name, suggestion):
    with pytest.raises(
        ModelNotFoundError, match=f"did you mean {suggestion}.*known: tiny-model, other-model"
    ):
        resolve_model(name, home)


@pytest.mark.parametrize("name", ["", "zzzzzz", "x" * 5000, "a\0b", "né", "\ud800"])
def test_a_name_unlike_any_other_gets_the_list(home, entry, name):
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(name, home)
    assert "did you mean" not in str(caught.value)
    assert "known: tiny-model, other-model" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.name == name


@pytest.mark.parametrize("name", ["no/such/file", "../x", "gone.gguf", "/etc/gone"])
def test_what_looks_like_a_path_is_looked_for_as_one(home, entry, name):
    with pytest.raises(ModelNotFoundError, match="no such file"):
        resolve_model(name, home)


def test_a_directory_is_no_model(home, tmp_path):
    with pytest.raises(ModelNotFoundError, match="is a directory"):
        resolve_model(tmp_path, home)


# remove_model
def test_remove_takes_one_model_and_its_directory(filled):
    removed = remove_model("tiny-model", filled)
    assert [model.name for model in removed] == ["tiny-model"]
    assert "tiny-model" not in names(filled)
    assert not (filled / "models" / "tiny-model").exists()
    assert len(names(filled)) == 3


def test_remove_takes_one_file_of_a_repository(filled):
    remove_model("hf:org/repo:sub/b.gguf", filled)
    assert names(filled) == ["hf:org/repo2:c.gguf", "hf:org/repo:a.gguf", "tiny-model"]
    assert not (filled / "models" / "hf--org--repo" / "sub").exists()


def test_remove_takes_all_files_of_a_repository_and_no_other(filled):
    removed = remove_model("hf:org/repo", filled)
    assert [model.name for model in removed] == ["hf:org/repo:a.gguf", "hf:org/repo:sub/b.gguf"]
    assert names(filled) == ["hf:org/repo2:c.gguf", "tiny-model"]


def test_remove_sweeps_up_cut_off_pulls_and_keeps_foreign_files(filled):
    put(filled / "models" / "tiny-model" / ".pull-abc" / "tiny.gguf")
    readme = put(filled / "models" / "tiny-model" / "README.md")
    remove_model("tiny-model", filled)
    assert list((filled / "models" / "tiny-model").iterdir()) == [readme]


@pytest.mark.parametrize(
    "name",
    ["", "hf", "hf:", "hf:org", "other-model", "../home", "/etc", ".", "..", "hf--org--repo", "*", "zz"],
)
def test_remove_refuses_what_is_not_cached(filled, name):
    before = list_models(filled)
    with pytest.raises(ModelNotFoundError):
        remove_model(name, filled)
    assert list_models(filled) == before


def test_remove_never_follows_a_path(filled, tmp_path):
    outside = put(tmp_path / "outside.gguf")
    for name in (str(outside), "../../outside.gguf"):
        with pytest.raises(ModelNotFoundError):
            remove_model(name, filled)
    assert outside.exists()


# Locks, scratch directories, installation.
def test_the_lock_lets_one_in_at_a_time_and_tells_who_waits(home):
    directory = home / "models" / "m"
    waits = threading.Event()
    order = []

    def second() -> None:
        with locked(directory, waits.set):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked(directory, lambda: order.append("never")):
        thread.start()
        assert waits.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_different_models_do_not_wait_for_each_other(home):
    with locked(home / "models" / "a"), locked(home / "models" / "b", lambda: pytest.fail("waited")):
        pass


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_scratch_directory_is_gone_whatever_happens(home, error):
    def work(directory: Path) -> None:
        with scratch_directory(directory) as scratch:
            put(scratch / "half.gguf")
            raise error

    with pytest.raises(error):
        work(home / "models" / "m")
    assert not (home / "models" / "m").exists()


def test_a_scratch_directory_replaces_what_was_left_by_others(home):
    directory = home / "models" / "m"
    stale = put(directory / ".pull-old" / "half.gguf")
    kept = put(directory / "whole.gguf")
    with scratch_directory(directory):
        assert not stale.parent.exists()
    assert list(directory.iterdir()) == [kept]


def test_install_replaces_in_one_go(home):
    target = put(home / "m" / "x.gguf", b"old")
    reader = target.open("rb")
    install(put(home / "m" / ".pull-1" / "x.gguf", b"new bytes"), target)
    with reader:
        assert reader.read() == b"old"
    assert target.read_bytes() == b"new bytes"
