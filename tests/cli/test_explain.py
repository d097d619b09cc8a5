"""`ridgeline explain`: the contract's keys, the real model's path, other regimes, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.perf.priced_machine import PRICES, PROFILE

from ridgeline.bench.calibrate import default_shape, keep
from ridgeline.cli.main import run
from ridgeline.config.machine import cpu_limits
from ridgeline.engine.machine_profile import hardware_key
from ridgeline.explain.path import PATH_STEPS
from ridgeline.hub.hardware_store import load_hardware

KEYS = {
    "model": ["name", "arch", "weights_bytes", "layers", "hidden", "heads", "kv_heads", "head_dim", "vocab"],
    "hardware": ["cpu", "threads", "dram_bytes_per_s", "peak_ops_per_s", "source"],
    "kv_cache": [
        "block_size", "bytes_per_token", "bytes_per_token_formula", "blocks_peak", "tokens_peak",
        "slack_tokens", "allocated_bytes",
    ],
    "request": [
        "prompt_tokens", "completion_tokens", "cached_tokens", "ttft_s", "tpot_s", "itl_p50_s", "itl_p99_s",
        "e2e_s", "finish_reason",
    ],
    "output": ["text", "token_ids"],
}  # fmt: skip
PATH_KEYS = ["step", "seconds", "share", "count", "computation", "bottleneck", "vllm"]
PHASE_KEYS = [
    "tokens", "steps", "seconds", "predicted_s", "tok_s", "flops", "bytes", "intensity_flops_per_byte",
    "bound", "roofline_fraction",
]  # fmt: skip
OP_KEYS = [
    "phase", "op", "seconds", "predicted_s", "flops", "weight_bytes", "kv_bytes", "activation_bytes",
    "intensity_flops_per_byte", "bound", "roofline_fraction",
]  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    """An empty home whose machine is calibrated, to round numbers."""
    monkeypatch.setenv("RIDGELINE_HOME", str(tmp_path))
    prices = replace(PRICES, model=default_shape())
    keep(tmp_path, replace(PROFILE, prices=prices, num_threads=cpu_limits().num_threads))
    return tmp_path


@pytest.fixture
def explain(home: Path, capsys, model_path: Path):
    """Run `ridgeline explain` on the real model; its JSON."""

    def make(*arguments: object, prompt: str = "Why is the sky blue?") -> dict:
        words = [prompt, *map(str, arguments), "--model", str(model_path), "--max-model-len", "1024"]
        assert run(["explain", *words, "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    return make


@pytest.mark.golden
def test_the_document_has_the_contracts_keys(explain) -> None:
    made = explain("--max-tokens", 6)
    for name, keys in KEYS.items():
        assert set(keys) <= set(made[name]), name
    assert [step["step"] for step in made["path"]] == list(PATH_STEPS)
    assert all(set(PATH_KEYS) <= set(step) for step in made["path"])
    assert list(made["phases"]) == ["prefill", "decode"]
    assert all(set(PHASE_KEYS) <= set(phase) for phase in made["phases"].values())
    assert all(set(OP_KEYS) <= set(op) for op in made["ops"])
    assert made["hardware"]["source"] == "measured"
    assert made["request"]["cached_tokens"] == 0
    for step in made["path"]:
        assert step["computation"]
        assert step["bottleneck"]
        assert "vllm/" in step["vllm"]


@pytest.mark.golden
def test_ceilings_that_the_run_beats_are_raised_kept_and_told(explain, home) -> None:
    key = hardware_key(cpu_limits().num_threads)
    made = explain("--max-tokens", 4)  # 1 GB/s of memory was a low guess
    assert any(note.startswith("dram raised by") for note in made["raised_ceilings"])
    kept = load_hardware(key, home)["profile"]
    assert kept["dram_bytes_per_s"] == made["hardware"]["dram_bytes_per_s"] > PROFILE.dram_bytes_per_s
    assert max(phase["roofline_fraction"] for phase in made["phases"].values()) <= 1.02


@pytest.mark.golden
def test_every_second_is_on_the_path_and_in_an_op_once(explain) -> None:
    made = explain("--max-tokens", 8)
    assert sum(step["seconds"] for step in made["path"]) == pytest.approx(made["regime"]["wall_s"])
    assert sum(step["share"] for step in made["path"]) == pytest.approx(1)
    for name, phase in made["phases"].items():
        ops = [op for op in made["ops"] if op["phase"] == name]
        assert sum(op["seconds"] for op in ops) == pytest.approx(phase["op_share"] * phase["seconds"])
        (overhead,) = [op["seconds"] for op in ops if op["op"] == "step_overhead"]
        assert sum(phase["step_overhead_parts"].values()) == pytest.approx(overhead)
        assert all(seconds > 0 for seconds in phase["step_overhead_parts"].values())
        assert 0.5 < phase["kernel_share"] < phase["op_share"] <= 1
        for key in ("flops", "weight_bytes", "kv_bytes", "activation_bytes"):
            assert sum(op[key] for op in ops) == phase[key]
    assert len(made["steps"]) == made["phases"]["prefill"]["steps"] + made["phases"]["decode"]["steps"]
    assert made["phases"]["prefill"]["tokens"] == made["request"]["prompt_tokens"]
    assert made["phases"]["decode"]["tokens"] == made["request"]["completion_tokens"] - 1


@pytest.mark.golden
def test_weights_and_kv_are_those_of_the_file(explain) -> None:
    made = explain("--max-tokens", 4)
    decode = made["phases"]["decode"]
    read_once = decode["weight_bytes"] / decode["steps"]
    assert read_once == pytest.approx(made["model"]["weights_bytes"], rel=0.001)
    cache = made["kv_cache"]
    assert cache["bytes_per_token"] == 23_040
    assert cache["tokens_peak"] == made["request"]["prompt_tokens"] + 3
    assert cache["blocks_peak"] * cache["block_size"] == cache["tokens_peak"] + cache["slack_tokens"]
    assert sum(sum(t.values()) for t in made["sweeps"]["weights"].values()) < made["model"]["weights_bytes"]


@pytest.mark.golden
def test_other_regimes_really_run(explain) -> None:
    made = explain("--batch", 3, "--context", 100, "--max-tokens", 3, "--max-num-seqs", 2)
    assert made["regime"]["batch"] == 3
    assert made["request"]["prompt_tokens"] == 100
    assert max(step["requests"] for step in made["steps"]) == 3
    assert made["phases"]["prefill"]["tokens"] == 300
    chunked = explain("--context", 100, "--max-tokens", 2, "--max-num-batched-tokens", 40)
    assert [step["prefill_tokens"] for step in chunked["steps"]] == [40, 40, 20, 0]
    assert chunked["path"][2]["count"] == 3


@pytest.mark.golden
def test_the_answer_is_that_of_generate(explain, capsys, model_path: Path) -> None:
    made = explain("--max-tokens", 5, "--raw", prompt="The capital of France is")
    arguments = ["--raw", "--max-tokens", "5", "--model", str(model_path), "--json", "-"]
    assert run(["generate", "The capital of France is", *arguments]) == 0
    assert made["output"] == json.loads(capsys.readouterr().out)["output"]


@pytest.mark.golden
@pytest.mark.parametrize("columns", [80, 120])
def test_the_text_fits_the_terminal_and_cuts_nothing(home, capsys, monkeypatch, model_path, columns) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    arguments = ["--model", str(model_path), "--max-tokens", "12", "--max-model-len", "512"]
    assert run(["explain", "Hi", *arguments]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    tables = text[text.index("The path") : text.index("Step by step")]
    assert "…" not in tables
    for word in (*PATH_STEPS, "gate_up_proj", "step_overhead", "memory", "a batch of"):
        assert word in text
    # Prices of round numbers are not this machine's: its steps are far off, and the report says so.
    assert "Drift: steps take" in text


@pytest.mark.golden
def test_an_uncalibrated_machine_is_measured_first_and_told_so(
    tmp_path, capsys, monkeypatch, model_path
) -> None:
    monkeypatch.setenv("RIDGELINE_HOME", str(tmp_path))
    arguments = ["--model", str(model_path), "--max-tokens", "2", "--max-model-len", "256", "--json", "-"]
    assert run(["explain", "Hi", *arguments]) == 0
    written = capsys.readouterr()
    assert "measuring this machine" in written.err
    assert load_hardware(hardware_key(cpu_limits().num_threads), tmp_path) is not None
    made = json.loads(written.out)
    assert all(phase["predicted_s"] > 0 for phase in made["phases"].values())


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([""], "prompt"),
        (["  "], "prompt"),
        (["Hi", "--batch", "0"], "batch"),
        (["Hi", "--context", "0"], "context"),
        (["Hi", "--executor", "reference"], "executor"),
        (["Hi", "--json", "/nowhere/x.json"], "json"),
        (["Hi", "--html", "/nowhere/x.html"], "html"),
        (["Hi", "--max-tokens", "0"], "max_tokens"),
        (["Hi", "--model", "no-such-model"], "no-such-model"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(home, capsys, tiny_model, arguments, word) -> None:
    if "--model" not in arguments:
        arguments = [*arguments, "--model", str(tiny_model)]
    assert run(["explain", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ridgeline: error:")
    assert word in line


@pytest.mark.golden
@pytest.mark.parametrize(
    ("arguments", "word"), [(["--context", "5"], "context"), (["--context", "300"], "prompt")]
)
def test_lengths_that_cannot_be_are_refused(home, capsys, model_path, arguments, word) -> None:
    words = ["Why is the sky blue?", *arguments, "--model", str(model_path), "--max-model-len", "256"]
    assert run(["explain", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert word in line


@pytest.mark.golden
def test_what_ifs_are_answered_and_checked_by_a_run(explain) -> None:
    made = explain("--max-tokens", 6, "--what-if", "batch=3", "hardware=h100", "weights=q8_0")
    answers = [each for each in made["what_if"] if each["phase"] == "decode" and len(each["changes"]) == 1]
    decode = {each["changes"][0]: each for each in answers}
    assert set(decode) == {"batch=3", "hardware=h100", "weights=q8_0"}
    assert decode["weights=q8_0"]["checked"]["weights"] == "made up"
    assert decode["weights=q8_0"]["checked"]["measured_s"] > 0
    assert decode["batch=3"]["checked"]["measured_s"] > 0
    assert decode["hardware=h100"]["checked"] is None
    assert decode["hardware=h100"]["hardware"]["source"] == "data sheet"


@pytest.mark.golden
def test_two_explanations_are_compared(explain, tmp_path, capsys) -> None:
    paths = []
    for batch in (1, 4):
        paths.append(tmp_path / f"{batch}.json")
        paths[-1].write_text(json.dumps(explain("--max-tokens", 4, "--batch", batch)))
    assert run(["explain", "--compare", *map(str, paths), "--json", "-"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [each["batch"] for each in made["runs"]] == [1, 4]
    by_op = {(each["phase"], each["op"]): each for each in made["ops"]}
    assert by_op["prefill", "gate_up_proj"]["factors"]["FLOPs a step"] == 4
    assert run(["explain", "--compare", *map(str, paths)]) == 0
    assert "what moved them" in capsys.readouterr().out


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"model": {}}', "\0"])
def test_files_that_are_no_explanations_are_refused(tmp_path, capsys, text) -> None:
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)
    assert run(["explain", "--compare", str(path), str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "compare" in line


@pytest.mark.parametrize("question", ["colour=red", "batch", "batch=0", "batch=2 batch=3", "hardware=abacus"])
def test_questions_that_make_no_sense_are_refused(home, tiny_model, capsys, question) -> None:
    assert run(["explain", "Hi", "--model", str(tiny_model), "--what-if", *question.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ridgeline: error:")


def test_a_comparison_has_no_page_and_says_so(tmp_path, capsys) -> None:
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    assert run(["explain", "--compare", *paths, "--html", str(tmp_path / "x.html")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "html" in line
    assert not (tmp_path / "x.html").exists()
