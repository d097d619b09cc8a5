"""`ridgeline calibrate` as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str, home: Path, cpus: set[int] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ridgeline", "calibrate", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "RIDGELINE_HOME": str(home)},
        preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None,
    )


@pytest.mark.parametrize("threads", ["0", "-1", "1000"])
def test_threads_out_of_range_are_refused(tmp_path: Path, threads: str) -> None:
    done = run("--threads", threads, home=tmp_path)
    assert done.returncode == 2
    assert "threads" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_target_that_can_not_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    done = run("--json", str(tmp_path / "no" / "file.json"), home=tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "hardware").exists()


def test_one_allowed_cpu_means_one_thread_and_the_reason_is_told(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    done = run("--short", "--json", "-", home=tmp_path, cpus={cpu})
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    profile = document["profile"]
    assert document["key"]["num_threads"] == profile["num_threads"] == 1
    assert profile["notes"][0].startswith("1 threads; 1 CPUs allowed")
    assert profile["source"] == "measured"
    (file,) = (tmp_path / "hardware").iterdir()
    assert json.loads(file.read_text()) == document


def test_the_table_names_every_ceiling(tmp_path: Path) -> None:
    done = run("--short", home=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("memory read, 1 thread", "attention", "Q4_1", "Kept in", "outside its ops"):
        assert words in done.stdout


def test_a_machine_by_name_is_shown_with_its_sources_and_nothing_is_measured(tmp_path: Path) -> None:
    done = run("--hardware", "H100 PCIe", "--json", "-", home=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["name"], document["source"]) == ("h100-pcie", "data sheet")
    assert set(document["sources"]) == {"memory", "bandwidth", *document["peaks_flops_per_s"]}
    assert not (tmp_path / "hardware").exists()
    shown = run("--hardware", "h100-pcie", home=tmp_path)
    assert "2,000.0 GB/s" in shown.stdout
    assert "data sheet" in shown.stdout
    assert "mi300x" in run("--list-hardware", home=tmp_path).stdout


def test_an_unknown_machine_is_refused_by_name(tmp_path: Path) -> None:
    done = run("--hardware", "h10", home=tmp_path)
    assert done.returncode == 2
    assert "h100-sxm" in done.stderr
    assert len(done.stderr.splitlines()) == 1
