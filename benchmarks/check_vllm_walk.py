"""Every path and symbol that `explain` names of vLLM, looked up in that version's wheel.

    python benchmarks/check_vllm_walk.py [--wheel FILE] [--version X]

Without --wheel it is downloaded from PyPI (some 240 MB). Exits 1 when anything is missing.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ridgeline.explain.vllm_walk import VLLM_VERSION, VLLM_WALK


def symbols(source: str) -> set[str]:
    """Names of classes and functions at the top of a module, and `Class.method`."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, kinds):
            found.add(node.name)
            inner = node.body if isinstance(node, ast.ClassDef) else []
            found |= {f"{node.name}.{each.name}" for each in inner if isinstance(each, kinds)}
    return found


def missing(wheel: Path) -> list[str]:
    problems = []
    with zipfile.ZipFile(wheel) as package:
        names = set(package.namelist())
        for step in VLLM_WALK.values():
            for path, symbol in step.sources:
                if path not in names:
                    problems.append(f"{step.step}: no {path}")
                elif symbol not in symbols(package.read(path).decode()):
                    problems.append(f"{step.step}: no {symbol} in {path}")
                else:
                    print(f"{step.step:12} {path}: {symbol}")
    return problems


def download(version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), f"vllm=={version}"], check=True)
    return next(folder.glob("vllm-*.whl"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--version", default=VLLM_VERSION)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        problems = missing(arguments.wheel or download(arguments.version, Path(folder)))
    print("\n".join(problems) or f"all there in vLLM {arguments.version}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
