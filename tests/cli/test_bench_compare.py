"""`ridgeline bench compare` on files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.test_bench_report import command
from tests.cli.test_bench_serve import bench
from tests.loadgen.fake_server import answering, running


def test_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    words = ["--num-prompts", "12", "--random-input-len", "4", "--random-output-len", "3", "--save-detailed"]
    for path, first_s in zip(paths, (0.0, 0.3), strict=True):
        with running(answering(3, first_s=first_s)) as server:
            done = bench(server.url, *words, "--model", "m", "--max-concurrency", "2", "--json", path)
            assert done.returncode == 0, done.stderr
    out = tmp_path / "c.json"
    assert command("compare", *paths, "--goodput", "ttft:200", "--json", str(out)) == 0
    text = capsys.readouterr().out
    assert "TTFT mean, ms" in text
    document = json.loads(out.read_text())
    by_name = {f"{row['metric']} {row['statistic']}": row for row in document["differences"]}
    assert by_name["TTFT mean"]["verdict"] == "b higher"
    assert by_name["TTFT mean"]["difference"] > 200
    assert by_name["TTFT p99"]["verdict"] == "too few values"
    assert by_name["meets all SLOs share"]["verdict"] == "b lower"
    assert command("compare", paths[0], paths[0], "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []
    twice = tmp_path / "twice.json"
    line = json.dumps(json.loads(Path(paths[0]).read_text()))
    twice.write_text(f"{line}\n{line}\n")
    assert command("compare", str(twice), paths[0]) == 2
    assert "holds 2 runs" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "problem"), [("[1]", "no JSON object"), ("x", "not JSON")])
def test_a_bad_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert command("compare", str(path), str(path)) == 2
    assert problem in capsys.readouterr().err


def test_a_missing_file_and_a_wrong_level(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("compare", "none-a.json", "none-b.json") == 2
    assert "can't be read" in capsys.readouterr().err
    assert command("compare", "a.json", "b.json", "--confidence", "2") == 2
    assert "confidence" in capsys.readouterr().err
