"""Every path and symbol that `explain` names of vLLM, looked up in that version's package.

    python benchmarks/check_vllm_walk.py [--installed SITE_PACKAGES | --wheel FILE] [--version X]

SITE_PACKAGES is where that version, or its CPU build, is installed. Without both, the wheel is downloaded
from PyPI (some 240 MB). Exits 1 when anything is missing, or when another version is installed.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from ridgeline.explain.vllm_walk import VLLM_VERSION, VLLM_WALK

Read = Callable[[str], str | None]
"""The source at a path of the package; None where there is none."""


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


def missing(read: Read) -> list[str]:
    problems = []
    for step in VLLM_WALK.values():
        for path, symbol in step.sources:
            source = read(path)
            if source is None:
                problems.append(f"{step.step}: no {path}")
            elif symbol not in symbols(source):
                problems.append(f"{step.step}: no {symbol} in {path}")
            else:
                print(f"{step.step:12} {path}: {symbol}")
    return problems


def in_wheel(wheel: Path) -> Read:
    def read(path: str) -> str | None:
        with zipfile.ZipFile(wheel) as package:
            return package.read(path).decode() if path in package.namelist() else None

    return read


def in_folder(folder: Path) -> Read:
    def read(path: str) -> str | None:
        return (folder / path).read_text() if (folder / path).is_file() else None

    return read


def installed_versions(folder: Path) -> list[str]:
    """Versions by the names of its `dist-info` folders, of vLLM itself and of its CPU build."""
    return [path.name.removesuffix(".dist-info").partition("-")[2] for path in folder.glob("vllm*.dist-info")]


def download(version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), f"vllm=={version}"], check=True)
    return next(folder.glob("vllm-*.whl"))


def problems_of(arguments: argparse.Namespace) -> list[str]:
    if arguments.installed is not None:
        found = installed_versions(arguments.installed)
        if arguments.version not in found:
            there = ", ".join(found) or "no vLLM"
            return [f"{arguments.installed} has {there}, not {arguments.version}"]
        return missing(in_folder(arguments.installed))
    with tempfile.TemporaryDirectory() as folder:
        return missing(in_wheel(arguments.wheel or download(arguments.version, Path(folder))))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--installed", type=Path)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--version", default=VLLM_VERSION)
    arguments = parser.parse_args()
    problems = problems_of(arguments)
    print("\n".join(problems) or f"all there in vLLM {arguments.version}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
