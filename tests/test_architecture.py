"""The ceilings that keep the house small: lines of a function, a file, a room; parameters; drawers."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ridgeline

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ridgeline"
NATIVE = ROOT / "csrc"

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 400
MAX_PARAMETERS = 6
ROOM_CEILINGS = {
    "config": 800,
    "core": 1640,
    "formats": 900,
    "kernels": 1100,
    "hub": 900,
    "tokenizer": 1450,
    "tools": 800,
    "grammar": 900,
    "sampling": 500,
    "metrics": 3800,
    "perf": 4400,
    "workload": 1000,
    "dashboard": 1800,
    "model": 1400,
    "engine": 1600,
    "bench": 1900,
    "loadgen": 4600,
    "explain": 2000,
    "server": 3_700,
    "cli": 3100,
}
LEAF_CEILINGS = {
    "__init__.py": 60,
    "__main__.py": 10,
    "errors.py": 150,
    "sampling_params.py": 260,
    "structured_outputs.py": 130,
    "outputs.py": 150,
    "build.py": 260,
    "llm.py": 320,
    "async_llm.py": 300,
}
DRAWERS = {"utils", "helpers", "common", "misc", "base"}
# Public doors that take every setting by name.
MANY_PARAMETERS = {
    ("llm.py", "__init__"),
    ("llm.py", "chat"),
    ("llm.py", "stream_chat"),
    ("async_llm.py", "chat"),
}


def python_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def num_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_functions_fit_a_screen_and_files_a_sitting(path: Path) -> None:
    long = [f.name for f in functions(path) if f.end_lineno - f.lineno + 1 > MAX_FUNCTION_LINES]  # type: ignore[operator]
    assert long == []
    assert num_lines(path) <= MAX_FILE_LINES


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_functions_take_few_parameters(path: Path) -> None:
    for function in functions(path):
        arguments = function.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        count = len([name for name in names if name not in ("self", "cls")])
        if (path.name, function.name) not in MANY_PARAMETERS:
            assert count <= MAX_PARAMETERS, f"{function.name} takes {count}"


@pytest.mark.parametrize("room", sorted(p.name for p in SOURCE.iterdir() if (p / "__init__.py").exists()))
def test_rooms_stay_under_their_ceilings(room: str) -> None:
    assert sum(map(num_lines, (SOURCE / room).glob("*.py"))) <= ROOM_CEILINGS[room]


def test_leaves_stay_under_their_ceilings() -> None:
    assert {p.name for p in SOURCE.glob("*.py")} == set(LEAF_CEILINGS)
    for name, ceiling in LEAF_CEILINGS.items():
        assert num_lines(SOURCE / name) <= ceiling, name


def test_native_files_stay_under_their_ceilings() -> None:
    files = [*NATIVE.rglob("*.cpp"), *NATIVE.rglob("*.h")]
    assert files
    for path in files:
        assert num_lines(path) <= MAX_FILE_LINES, path.name


def test_there_are_no_drawers() -> None:
    names = {part for p in python_files() for part in p.relative_to(SOURCE).with_suffix("").parts}
    assert not names & DRAWERS


def test_room_inits_import_nothing() -> None:
    for path in SOURCE.glob("*/__init__.py"):
        body = ast.parse(path.read_text()).body
        assert len(body) == 1, path
        assert isinstance(body[0], ast.Expr), path


def test_intrinsics_stay_in_their_isa_files() -> None:
    for path in [*NATIVE.rglob("*.cpp"), *NATIVE.rglob("*.h")]:
        if path.parent.name != "isa":
            assert "immintrin" not in path.read_text(), path


def test_the_public_names_are_these() -> None:
    assert ridgeline.__all__ == [
        "LLM",
        "AsyncLLM",
        "CompletionOutput",
        "ConfigError",
        "DownloadError",
        "EngineError",
        "FinishReason",
        "Logprob",
        "ModelFileError",
        "ModelNotFoundError",
        "RequestError",
        "RequestMetrics",
        "RequestOutput",
        "RidgelineError",
        "SamplingParams",
        "StructuredOutputs",
    ]
    for name in ridgeline.__all__:
        assert getattr(ridgeline, name) is not None


def test_importing_the_package_loads_no_heavy_part() -> None:
    program = (
        "import sys, ridgeline; "
        "print([m for m in ('numpy', 'tokenizers', 'ridgeline.kernels._native', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
