"""Make the book: run every command of its chapters on this machine and put in what they print and measure.

    python docs/book/build.py OUT_DIR

A chapter holds commands in blocks, and values in the text::

    ```ridgeline until="Step by step" page=why.html?at=roofline
    ridgeline explain "Why is the sky blue?" --json why.json --html why.html
    ```

    a token took {{why.json request.tpot_s 1e-3 .1f}} ms

The block keeps its command and gets its output before the first line that has `until` in it; `page`, from a
place in it on, is shown below. A value is (file a command wrote, path of keys, unit to divide by, format);
in a list a key is an item's name.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CHAPTERS = Path(__file__).parent
COLUMNS = 96
_BLOCK = re.compile(r"^```ridgeline(?P<options>[^\n]*)\n(?P<command>.*?)^```\n", re.M | re.S)
_VALUE = re.compile(r"\{\{(?P<file>\S+) (?P<path>\S+)(?: (?P<unit>[0-9.e+-]+) (?P<format>\S+))?\}\}")
_NAMES = ("step", "op", "phase", "batch")


class BookError(Exception):
    """A command failed, or a value is not there."""


@dataclass(frozen=True)
class Block:
    """One command of a chapter, with what to show of it."""

    command: str
    until: str | None
    page: str | None

    @property
    def arguments(self) -> list[str]:
        """Without `ridgeline` itself."""
        words = shlex.split(self.command.replace("\\\n", " "))
        if words[:1] != ["ridgeline"]:
            raise BookError(f"no ridgeline command: {self.command}")
        return words[1:]


def block_of(match: re.Match[str]) -> Block:
    options = dict(word.split("=", 1) for word in shlex.split(match["options"]))
    return Block(match["command"].strip(), options.get("until"), options.get("page"))


def blocks(text: str) -> list[Block]:
    """The commands of a chapter, in order."""
    return [block_of(match) for match in _BLOCK.finditer(text)]


def values(text: str) -> list[tuple[str, str]]:
    """(file, path) of each value in a chapter."""
    return [(match["file"], match["path"]) for match in _VALUE.finditer(text)]


def run(block: Block, folder: Path) -> str:
    """What the command prints; it runs in `folder`, where it leaves its files."""
    env = {**os.environ, "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline", *block.arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BookError(f"{block.command}\n{done.stderr}")
    return done.stdout


def shown(lines: list[str], until: str | None) -> list[str]:
    """Lines before the first that has `until` in it, less blank ones at the end."""
    if until is None:
        return lines
    ends = [index for index, line in enumerate(lines) if until in line]
    if not ends:
        raise BookError(f"no line has {until!r}")
    before = "\n".join(lines[: ends[0]]).rstrip().split("\n")
    return [*before, "…"]


def rendered(block: Block, output: str) -> str:
    """Markdown of a command, its output, and its page."""
    lines = shown([line.rstrip() for line in output.rstrip().splitlines()], block.until)
    parts = [f"```console\n$ {block.command}", *lines, "```", ""]
    if block.page:
        parts += [
            f'<iframe class="page" src="../{block.page}" title="{block.page}" loading="lazy"></iframe>',
            f"[Open it by itself]({block.page.partition('?')[0]}){{ .quiet }}",
            "",
        ]
    return "\n".join(parts)


def looked_up(document: object, path: str) -> object:
    """The value at keys with dots between; in a list the item of that name."""
    for key in path.split("."):
        if isinstance(document, list):
            named = [item for item in document if key in [str(item.get(name)) for name in _NAMES]]
            document = named[0] if named else None
        elif isinstance(document, dict):
            document = document.get(key)
        if document is None:
            raise BookError(f"no {path}: {key} is not there")
    return document


def with_values(text: str, folder: Path) -> str:
    def value(match: re.Match[str]) -> str:
        try:
            document = json.loads((folder / match["file"]).read_text())
        except (OSError, ValueError) as error:
            raise BookError(f"{match[0]}: {error}") from None
        found = looked_up(document, match["path"])
        if match["unit"] is None:
            return str(found)
        if not isinstance(found, int | float):
            raise BookError(f"{match[0]}: {found} is no number")
        return format(found / float(match["unit"]), match["format"])

    return _VALUE.sub(value, text)


def write_chapter(source: Path, folder: Path) -> None:
    text = source.read_text()
    outputs = {block.command: run(block, folder) for block in blocks(text)}
    text = _BLOCK.sub(lambda match: rendered(block_of(match), outputs[block_of(match).command]), text)
    (folder / source.name).write_text(with_values(text, folder))


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for asset in CHAPTERS.glob("*.css"):
        shutil.copy(asset, folder)
    # The first page calibrates, and the others are explained by what it measured.
    for source in sorted(CHAPTERS.glob("*.md"), key=lambda path: (path.name != "index.md", path.name)):
        print(f"book: {source.name}", file=sys.stderr)
        write_chapter(source, folder)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BookError as error:
        sys.exit(f"book: {error}")
