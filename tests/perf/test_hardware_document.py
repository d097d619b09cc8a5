"""A profile survives JSON unchanged."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.perf.priced_machine import PROFILE

from ridgeline.perf.hardware_document import document_of_profile, profile_of_document


@pytest.mark.parametrize("profile", [PROFILE, replace(PROFILE, prices=None, caches=())])
def test_a_profile_survives_json(profile) -> None:
    document = json.loads(json.dumps(document_of_profile(profile)))
    assert profile_of_document(document) == profile


def test_what_is_no_profile_is_refused() -> None:
    document = document_of_profile(PROFILE)
    with pytest.raises(KeyError):
        profile_of_document({key: value for key, value in document.items() if key != "caches"})
    with pytest.raises(TypeError):
        profile_of_document(document | {"unknown": 1})
    with pytest.raises(ValueError, match="source"):
        profile_of_document(document | {"source": "source"})
