"""Stored measurements: found again by the same machine and build only, and never half a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.hub.hardware_store import HardwareKey, hardware_path, load_hardware, save_hardware

KEY = HardwareKey(cpu="AMD EPYC (tm)/7", num_cores=2, num_threads=2, build="0.1.0-abc")


def test_what_was_stored_is_found(tmp_path: Path) -> None:
    path = save_hardware(KEY, tmp_path, {"name": "x"}, measured_at="2026-01-02T03:04:05Z")
    assert path == hardware_path(KEY, tmp_path)
    assert path.name == "amd-epyc-tm-7-2c-2t-0.1.0-abc.json"
    document = load_hardware(KEY, tmp_path)
    assert document is not None
    assert document["profile"] == {"name": "x"}
    assert document["measured_at"] == "2026-01-02T03:04:05Z"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "change", [{"cpu": "other"}, {"num_cores": 4}, {"num_threads": 1}, {"build": "0.1.1-abc"}]
)
def test_another_machine_or_build_finds_nothing(tmp_path: Path, change: dict[str, object]) -> None:
    save_hardware(KEY, tmp_path, {}, measured_at="now")
    assert load_hardware(replace(KEY, **change), tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 0}', '{"format": 1, "key": {}}'])
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    path = save_hardware(KEY, tmp_path, {}, measured_at="now")
    path.write_text(text)
    assert load_hardware(KEY, tmp_path) is None


def test_a_file_of_a_colliding_name_is_not_ours(tmp_path: Path) -> None:
    save_hardware(KEY, tmp_path, {}, measured_at="now")
    alike = replace(KEY, cpu="AMD EPYC  tm  7")
    assert alike.file_name == KEY.file_name
    assert load_hardware(alike, tmp_path) is None


def test_storing_again_replaces(tmp_path: Path) -> None:
    save_hardware(KEY, tmp_path, {"n": 1}, measured_at="a")
    path = save_hardware(KEY, tmp_path, {"n": 2}, measured_at="b")
    assert json.loads(path.read_text())["profile"] == {"n": 2}
