"""Pages of load runs, made by the commands."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.cli.test_bench_serve import FEW, bench
from tests.loadgen.fake_server import answering, running

from ridgeline.cli.main import run


def command(*words: str) -> int:
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        return run(["bench", *words])
    finally:
        signal.signal(signal.SIGTERM, terminate)


def test_a_run_as_a_page_leaves_the_json_as_it_was(tmp_path: Path) -> None:
    page, out, detailed = (str(tmp_path / name) for name in ("a.html", "a.json", "b.json"))
    with running(answering(3)) as server:
        done = bench(server.url, *FEW, "--model", "m", "--html", page, "--json", out)
        assert done.returncode == 0, done.stderr
        assert "requests" not in json.loads(Path(out).read_text())
        assert bench(server.url, *FEW, "--model", "m", "--save-detailed", "--json", detailed).returncode == 0
    text = Path(page).read_text()
    assert "<h1>Load on m</h1>" in text
    both = str(tmp_path / "both.html")
    assert command("report", detailed, detailed, "--html", both) == 0
    assert Path(both).read_text().count('<section data-run="') == 2
    assert command("report", out, "--html", both) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [(None, "can't be read"), ("{", "not JSON"), ('{"a": 1}', "no result of bench serve"), ("\xff", "JSON")],
)
def test_a_bad_file_is_the_users_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, problem: str
) -> None:
    path = tmp_path / "bad.json"
    if text is not None:
        path.write_text(text)
    assert command("report", str(path), "--html", str(tmp_path / "x.html")) == 2
    errors = capsys.readouterr().err
    assert problem in errors
    assert "bad.json" in errors
    assert len(errors.splitlines()) == 1


def test_no_file_and_no_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("report", "--html", str(tmp_path / "x.html")) == 2
    assert command("report", "a.json", "--html", str(tmp_path / "no" / "x.html")) == 2
    assert "html" in capsys.readouterr().err
