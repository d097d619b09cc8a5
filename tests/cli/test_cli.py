"""The command line: what it prints, where, and with which exit status."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def ridgeline(tmp_path: Path) -> Run:
    """Run a command in a process of its own, with an empty cache."""

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "ridgeline.cli.main", *arguments],
            check=False,
            input=stdin,
            capture_output=True,
            text=True,
            env={"RIDGELINE_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "COLUMNS": "100"},
            timeout=120,
        )
        assert "Traceback" not in done.stderr
        return done

    return run


def test_generate_streams_text_to_stdout_and_timings_to_stderr(ridgeline: Run, tiny_model: Path) -> None:
    arguments = ["generate", "Hello", "--model", str(tiny_model), "--max-tokens", "4", "--ignore-eos"]
    done = ridgeline(*arguments)
    assert done.returncode == 0
    assert "TTFT" in done.stderr
    assert "tok/s" in done.stderr
    as_json = json.loads(ridgeline(*arguments, "--json", "-").stdout)
    assert done.stdout == as_json["output"]["text"] + "\n"
    assert as_json["request"]["completion_tokens"] == len(as_json["output"]["token_ids"]) == 4
    assert as_json["request"]["finish_reason"] == "length"
    assert as_json["model"]["arch"] == "llama"


def test_generate_reads_stdin_writes_json_and_takes_raw_prompts(
    ridgeline: Run, tiny_model: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out.json"
    arguments = ["--model", str(tiny_model), "--max-tokens", "3", "--json", str(target)]
    ridgeline("generate", "-", "--raw", *arguments, stdin="AB")
    raw = json.loads(target.read_text())["request"]["prompt_tokens"]
    ridgeline("generate", "AB", *arguments)
    assert 0 < raw < json.loads(target.read_text())["request"]["prompt_tokens"]


def test_the_reference_executor_runs_too(ridgeline: Run, tiny_model: Path) -> None:
    done = ridgeline(
        "generate", "Hi", "--model", str(tiny_model), "--executor", "reference", "--max-tokens", "2"
    )
    assert done.returncode == 0


def test_chat_keeps_the_conversation_and_survives_a_turn_that_is_too_long(
    ridgeline: Run, tiny_model: Path
) -> None:
    lines = ["Hi", "x " * 3000, "/help", "/reset", "Again", "/exit", "never read"]
    arguments = ["--model", str(tiny_model), "--max-tokens", "3", "--system", "Be kind"]
    done = ridgeline("chat", *arguments, stdin="\n".join(lines))
    assert done.returncode == 0
    assert done.stderr.count("TTFT") == 2
    assert "max_model_len" in done.stderr


def test_models_lists_shows_and_removes(ridgeline: Run, tiny_model: Path, tmp_path: Path) -> None:
    assert "ridgeline pull --list" in ridgeline("models").stderr
    cached = tmp_path / "home" / "models" / "hf--org--repo" / "tiny.gguf"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(tiny_model.read_bytes())
    assert "hf:org/repo:tiny.gguf" in ridgeline("models").stdout
    (listed,) = json.loads(ridgeline("models", "list", "--json", "-").stdout)
    assert listed["size_bytes"] == tiny_model.stat().st_size
    shown = json.loads(ridgeline("models", "show", "hf:org/repo:tiny.gguf", "--json", "-").stdout)
    assert (shown["arch"], shown["layers"]) == ("llama", 2)
    assert ridgeline("models", "remove", "hf:org/repo:tiny.gguf").returncode == 0
    assert not cached.exists()


def test_bench_engine_writes_the_keys(ridgeline: Run, tiny_model: Path) -> None:
    arguments = ["--model", str(tiny_model), "--repeats", "2", "--json", "-"]
    done = ridgeline("bench", "engine", "--only", "load_s", *arguments)
    document = json.loads(done.stdout)
    assert set(document["load_s"]) == {"median", "min", "max", "runs", "others_cpu"}
    assert len(document["load_s"]["runs"]) == 2
    assert document["engine"] == "ridgeline"


def test_help_and_version(ridgeline: Run) -> None:
    for arguments in ([], ["--help"]):
        listed = ridgeline(*arguments).stdout
        assert all(name in listed for name in ("generate", "chat", "pull", "models", "bench"))
    for command in (["generate"], ["chat"], ["pull"], ["models", "show"], ["bench", "engine"]):
        assert "Example: ridgeline" in ridgeline(*command, "--help").stdout
    assert ridgeline("--version").stdout.strip() == "0.1.0"
    assert "smollm2-135m-instruct" in ridgeline("pull", "--list").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate"], ["prompt"]),
        (["generate", "hi"], ["ridgeline pull smollm2-135m-instruct"]),
        (["generate", "hi", "--model", "nonsense"], ["nonsense"]),
        (["generate", "hi", "--model", "TINY", "--temperature", "-1"], ["temperature", "-1"]),
        (["generate", "hi", "--model", "TINY", "--temperature", "warm"], ["temperature", "warm"]),
        (["generate", "hi", "--model", "TINY", "--top-p", "0"], ["top_p"]),
        (["generate", "hi", "--model", "TINY", "--max-tokens", "0"], ["max_tokens"]),
        (["generate", "hi", "--model", "TINY", "--stop", ""], ["stop"]),
        (["generate", "", "--raw", "--model", "TINY"], ["prompt"]),
        (["generate", "hi", "--model", "TINY", "--block-size", "5"], ["block_size", "16, 32, 64"]),
        (["generate", "hi", "--model", "TINY", "--executor", "gpu"], ["executor", "native, reference"]),
        (["generate", "hi", "--model", "TINY", "--json", "/nowhere/x"], ["json"]),
        (["generate", "hi", "--model", "TINY", "--chat-template", "/nowhere"], ["chat_template"]),
        (["generate", "hi", "--bogus"], ["bogus"]),
        (["models", "remove", "../../etc"], ["etc"]),
        (["models", "show", "CUT"], ["cut.gguf"]),
        (["generate", "hi", "--model", "CUT"], ["cut.gguf"]),
        (["pull"], ["name"]),
        (["pull", "smolm2"], ["smolm2"]),
        (["pull", "hf:broken"], ["hf:"]),
        (["bench", "engine", "--only", "speed", "--model", "TINY"], ["speed", "decode_b1_tok_s"]),
        (["frobnicate"], ["frobnicate"]),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_status_2(
    ridgeline: Run, tiny_model: Path, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_model.read_bytes()[:1000])
    places = {"TINY": str(tiny_model), "CUT": str(cut)}
    done = ridgeline(*(places.get(argument, argument) for argument in arguments))
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("ridgeline: error:")]
    assert len(errors) == 1
    assert all(word in errors[0] for word in words)


def test_unusual_streams_end_in_one_line_or_none(tmp_path: Path, tiny_model: Path) -> None:
    command = f"{sys.executable} -m ridgeline generate hi --model {tiny_model} --max-tokens 9 --ignore-eos"
    for redirect, status in ((">&-", 0), ("> /dev/full", 1), ("| head -c 0; exit ${PIPESTATUS[0]}", None)):
        done = subprocess.run(
            ["bash", "-c", f"{command} {redirect}"], capture_output=True, text=True, check=False, timeout=60
        )
        assert "Traceback" not in done.stderr
        assert status is None or done.returncode == status


def test_what_a_terminals_encoding_cannot_show_is_replaced(tiny_model: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ridgeline",
            "generate",
            "hi",
            "--model",
            str(tiny_model),
            "--max-tokens",
            "60",
        ],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"},
        check=False,
        timeout=60,
    )
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert done.stdout.isascii()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_without_a_traceback(tiny_model: Path, number: int, status: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ridgeline", "chat", "--model", str(tiny_model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    process.stderr.readline()  # the banner: the model is loaded, a line is awaited
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert "Traceback" not in errors
