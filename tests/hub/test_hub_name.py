from __future__ import annotations

import pytest

from ridgeline.errors import RequestError
from ridgeline.hub.hub_name import HubName, parse_hub_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf:org/repo", HubName("org/repo")),
        ("hf:Org-1/repo_2.5-GGUF", HubName("Org-1/repo_2.5-GGUF")),
        ("hf:org/repo:file.gguf", HubName("org/repo", "file.gguf")),
        ("hf:org/repo:Q4_K_M/a-00001-of-00002.GGUF", HubName("org/repo", "Q4_K_M/a-00001-of-00002.GGUF")),
    ],
)
def test_hub_names(name, expected):
    assert parse_hub_name(name) == expected
    assert str(expected) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "hf:",
        "hf:repo",
        "hf:/repo",
        "hf:org/",
        "hf:a/b/c",
        "hf:../repo",
        "hf:org/..",
        "hf:org/.hidden",
        "hf:org/a--b",
        "hf:org/a..b",
        "hf:org/re po",
        "hf:org/repo\n",
        "hf:org/repo:",
        "hf:org/repo:file.bin",
        "hf:org/repo:../file.gguf",
        "hf:org/repo:a/../../file.gguf",
        "hf:org/repo:/etc/file.gguf",
        "hf:org/repo:a//b.gguf",
        "hf:org/repo:.gguf",
        "hf:org/repo:a\\b.gguf",
        "hf:org/repo:a.gguf:b.gguf",
        "hf:org/repo:a.gguf\n",
        "hf:" + "a" * 97 + "/b",
        "https://huggingface.co/org/repo",
    ],
)
def test_malformed_hub_names(name):
    with pytest.raises(RequestError) as caught:
        parse_hub_name(name)
    assert caught.value.field == "name"
    assert caught.value.value == name
