"""The book: every command of its chapters parses, every value comes from a file that a command writes."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ridgeline.cli.app import new_app

BOOK = Path(__file__).parents[2] / "docs" / "book"
CHAPTERS = sorted(BOOK.glob("*.md"))


def load_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("book_build", BOOK / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["book_build"] = module
    spec.loader.exec_module(module)
    return module


build = load_build()


def test_the_book_has_its_five_chapters_and_all_are_in_the_table_of_contents() -> None:
    assert len(CHAPTERS) == 6
    contents = (BOOK.parents[1] / "mkdocs.yml").read_text()
    assert [path.name for path in CHAPTERS if path.name not in contents] == []


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_every_command_parses_and_writes_what_its_chapter_reads(chapter: Path) -> None:
    text = chapter.read_text()
    blocks = build.blocks(text)
    assert blocks
    assert text.count("```ridgeline") == len(blocks)
    written = set()
    for block in blocks:
        new_app().parse_args(block.arguments, exit_on_error=False, print_error=False)
        written |= {
            value
            for option, value in zip(block.arguments, block.arguments[1:], strict=False)
            if option in ("--json", "--html")
        }
        assert block.page is None or block.page.partition("?")[0] in written
    assert {file for file, _ in build.values(text)} <= written


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_measured_numbers_are_never_typed(chapter: Path) -> None:
    prose = re.sub(r"```.*?```|\{\{.*?\}\}", "", chapter.read_text(), flags=re.S)
    assert re.findall(r"\d+(?:\.\d+)? (?:ms|tok/s|µs a)\b", prose) == []


def test_a_chapter_is_run_and_filled_in(tmp_path: Path) -> None:
    source = tmp_path / "chapter.md"
    source.write_text(
        "```ridgeline until='  KV per'\nridgeline plan --model dims.json --context 32 --hardware h100 \\\n"
        "  --memory-bytes 8000000000 --json out.json\n```\n\n"
        "a token: {{out.json kv_bytes_per_token 1024 .0f}} KiB, "
        "{{out.json speed.batches.1.bound}}\n"
    )
    folder = tmp_path / "out"
    folder.mkdir()
    dims = {
        "layers": 32,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "hidden": 4096,
        "ffn": 14336,
        "vocab": 9,
    }
    (folder / "dims.json").write_text(json.dumps(dims))
    build.write_chapter(source, folder)
    made = (folder / "chapter.md").read_text()
    assert made.startswith("```console\n$ ridgeline plan --model dims.json")
    assert "\n…\n```" in made
    assert "a token: 128 KiB, memory" in made


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```ridgeline until=Nowhere\nridgeline metrics explain tpot\n```\n", "no line has 'Nowhere'"),
        ("```ridgeline\nls /\n```\n", "no ridgeline command"),
        ("```ridgeline\nridgeline plan --context 0\n```\n", "context"),
        ("{{none.json a}}\n", "none.json"),
        ("{{have.json a.b}}\n", "b is not there"),
        ("{{have.json a.c 1 .0f}}\n", "is no number"),
    ],
)
def test_what_can_not_be_filled_in_ends_the_build(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "have.json").write_text('{"a": {"c": "word"}}')
    source = tmp_path / "source" / "chapter.md"
    source.parent.mkdir()
    source.write_text(text)
    with pytest.raises(build.BookError, match=problem):
        build.write_chapter(source, tmp_path)
