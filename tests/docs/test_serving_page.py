"""docs/serving.md: its table has the options of `ridgeline serve`, and no others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
NOT_OURS = {"--help", "--version"}
SHORTHANDS = re.compile(r"--(?:empty|no)-[a-z-]+")


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text)) - NOT_OURS


def told_by_help() -> set[str]:
    command = [sys.executable, "-m", "ridgeline", "serve", "--help"]
    wide = {**os.environ, "COLUMNS": "250"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=wide)
    # Descriptions name options, too; a parameter's own names begin its line.
    lines = re.findall(r"^\W*([A-Z\[\]]+ )?((?:--[a-z0-9-]+[ ,/]*)+)", done.stdout, re.M)
    return options_in(" ".join(names for _, names in lines))


def table() -> set[str]:
    section = PAGE.partition("\n## All options")[2]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    return options_in(" ".join(rows))


def test_every_option_is_in_the_table_and_nothing_else() -> None:
    told = told_by_help()
    assert {"--port", "--model", "--otlp-endpoint", "--no-calibrate"} <= told
    positive = {option for option in told if not SHORTHANDS.fullmatch(option)}
    assert positive - table() == set()
    assert table() - told == set()


def test_every_option_that_the_page_mentions_is_one_of_somebody() -> None:
    section = PAGE.partition("\n## All options")[0]
    of_others = {"--url", "--seconds", "--output-len"}
    assert options_in(section) - told_by_help() <= of_others
