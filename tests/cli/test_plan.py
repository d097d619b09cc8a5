"""`ridgeline plan`: the contract's keys, dimensions in JSON, big files by their header, and its refusals."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.perf.priced_machine import PROFILE

from ridgeline import LLM
from ridgeline.cli import plan_machine
from ridgeline.cli.main import run
from ridgeline.config.machine import cpu_limits
from ridgeline.engine.machine_profile import store_profile
from ridgeline.formats.gguf import open_gguf
from ridgeline.formats.quants import QUANT_TYPES

KEYS = [
    "weights_bytes", "kv_bytes_per_token", "kv_formula", "block_bytes", "num_blocks", "kv_cache_bytes",
    "max_cached_tokens", "max_concurrency", "decode_tok_s_limit", "prefill_tok_s_limit", "ridge_batch",
]  # fmt: skip


@pytest.fixture(autouse=True)
def measured_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home where this machine has been measured, with round numbers."""
    monkeypatch.setenv("RIDGELINE_HOME", str(tmp_path / "home"))
    profile = replace(PROFILE, num_threads=cpu_limits().num_threads)
    store_profile(tmp_path / "home", profile, measured_at="2026-01-01T00:00:00Z")


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]):
    """Run `ridgeline plan`; its JSON."""

    def make(*arguments: object) -> dict[str, object]:
        assert run(["plan", *map(str, arguments), "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    return make


@pytest.fixture
def dims(tmp_path: Path):
    """Write a file of dimensions."""

    def write(values: object) -> Path:
        path = tmp_path / "dims.json"
        path.write_text(values if isinstance(values, str) else json.dumps(values))
        return path

    return write


def test_a_file_is_planned_from_its_header(plan, tiny_model: Path) -> None:
    made = plan("--model", tiny_model, "--context", 1, 64, "--kv-cache-bytes", 10**6)
    assert list(made)[: len(KEYS)] == KEYS
    with open_gguf(tiny_model) as file:
        assert made["weights_bytes"] == sum(t.size_bytes for t in file.tensors.values())
    assert made["kv_cache_bytes"] == made["num_blocks"] * made["block_bytes"] <= 10**6
    assert made["max_concurrency"] == {"1": made["num_blocks"], "64": made["num_blocks"] // 2}


@pytest.mark.golden
def test_the_real_model_takes_what_its_authors_dimensions_say(plan, model_path: Path) -> None:
    made = plan("--model", model_path, "--context", 1, 32, 33, "--memory-bytes", 10**10)
    assert made["kv_formula"] == "2 (K, V) × 30 layers × 3 KV heads × 64 × 2 B = 23,040 B"
    assert (made["kv_bytes_per_token"], made["block_bytes"]) == (23_040, 737_280)
    assert [r["slack_tokens"] for r in made["details"]["requests"]] == [31, 0, 31]
    with LLM(str(model_path), kv_cache_bytes=10 * 737_280 + 5) as llm:
        cache = llm.parts.engine._executor._forward._kv_cache
        assert cache.nbytes == 10 * made["block_bytes"]
        assert llm.parts.weights_bytes == made["weights_bytes"]


def test_dimensions_alone_are_planned(plan, dims) -> None:
    windowed = {"layers": 36, "heads": 64, "kv_heads": 8, "head_dim": 64, "window": 128, "window_layers": 18}
    made = plan("--model", dims(windowed), "--context", 4096, "--memory-bytes", 10**11)
    assert made["weights_bytes"] is None
    (request,) = made["details"]["requests"]
    assert request["token_bytes"] == request["allocated_bytes"] == 155_713_536
    grouped = plan("--model", dims({"layers": 32, "heads": 32, "kv_heads": 8, "head_dim": 128}))
    assert grouped["kv_bytes_per_token"] == 131_072


def test_the_text_shows_formula_memory_and_what_runs_out(capsys, tiny_model: Path, dims) -> None:
    assert run(["plan", "--model", str(tiny_model), "--memory-bytes", "2000000"]) == 0
    text = capsys.readouterr().out
    assert "2 (K, V) × " in text
    assert "as --memory-bytes says" in text
    assert "the KV cache" in text
    assert "ceilings" in text
    path = dims({"layers": 32, "heads": 32, "head_dim": 128})
    assert run(["plan", "--model", str(path), "--kv-cache-bytes", str(10**8)]) == 0
    text = capsys.readouterr().out
    assert "unknown without hidden, ffn, vocab" in text
    assert "max_model_len 160 instead of 8,192" in text


def test_a_model_much_larger_than_the_memory_is_planned_without_reading_its_weights(
    plan, tmp_path: Path
) -> None:
    path = tmp_path / "large.gguf"
    hidden, layers = 8192, 2
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "block_count": layers, "context_length": 4096, "embedding_length": hidden,
        "feed_forward_length": 28672, "attention.head_count": 64, "attention.head_count_kv": 8,
    }.items():  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tensor_info(
        "token_embd.weight",
        (1 << 22, hidden),
        np.float16,
        (1 << 22) * hidden * 2,
        gguf.GGMLQuantizationType.F16,
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    weights_bytes = QUANT_TYPES["F16"].size_bytes((1 << 22) * hidden)
    os.truncate(path, path.stat().st_size + weights_bytes + 4096)  # a hole: no byte of it is on the disk
    made = plan("--model", path, "--memory-bytes", 10**10)
    assert made["weights_bytes"] == weights_bytes == 68_719_476_736
    assert made["kv_bytes_per_token"] == 2 * layers * 8 * 128 * 2
    assert {r["runs_out_first"] for r in made["details"]["requests"]} == {"weights"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--context", "0"], "context=0"),
        (["--context", "999999"], "context=999999"),
        (["--max-model-len", "999999"], "max_model_len=999999"),
        (["--block-size", "0"], "block_size=0"),
        (["--max-num-seqs", "-1"], "max_num_seqs=-1"),
        (["--memory-bytes", "0"], "memory_bytes=0"),
        (["--memory-bytes", "1000"], "kv_cache_bytes=250"),
        (["--kv-cache-bytes", "1000000000000000"], "are available"),
        (["--kv-cache-bytes", "10"], "a block of 32 tokens takes"),
    ],
)
def test_wrong_options_are_refused_by_name(
    capsys, tiny_model: Path, arguments: list[str], named: str
) -> None:
    assert run(["plan", "--model", str(tiny_model), *arguments]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"layer": 3}', "'layer'"),
        ('{"layers": 0, "heads": 1, "head_dim": 8}', "layers=0"),
        ('{"layers": 1e3, "heads": 1, "head_dim": 8}', "layers=1000.0"),
        ('{"layers": 1, "heads": 1}', "head_dim=None"),
    ],
)
def test_wrong_dimensions_are_refused_by_name(capsys, dims, text: str, named: str) -> None:
    assert run(["plan", "--model", str(dims(text))]) == 2
    assert named in capsys.readouterr().err


def test_a_missing_file_of_dimensions_is_refused(capsys, tmp_path: Path) -> None:
    assert run(["plan", "--model", str(tmp_path / "none.json")]) == 2
    assert "can't be read" in capsys.readouterr().err


def test_a_measured_machine_gives_limits_and_advice(plan, tiny_model: Path) -> None:
    made = plan("--model", tiny_model)
    assert made["hardware"]["source"] == "measured"
    assert made["decode_tok_s_limit"] > 0
    assert made["prefill_tok_s_limit"] > 0
    assert not made["speed"]["is_least_time"]
    assert set(made["recommended"]) == {"max_num_seqs", "max_num_batched_tokens", "kv_cache_bytes"}
    assert all(advice["value"] > 0 and advice["reason"] for advice in made["recommended"].values())
    batch, request = made["recommended"]["max_num_seqs"]["value"], made["speed"]
    blocks = -(-(request["input_len"] + request["output_len"]) // 32)
    assert made["recommended"]["kv_cache_bytes"]["value"] == batch * blocks * made["block_bytes"]


def test_a_machine_that_nobody_measured_is_measured_shortly(
    plan, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measure(home: Path, num_threads: int, *, report) -> object:
        asked.append((home, num_threads))
        return PROFILE

    monkeypatch.setattr(plan_machine, "stored_or_short", measure)
    plan("--model", tiny_model, "--num-threads", 3)
    assert asked == [(tmp_path / "home", 3)]


def test_a_named_model_on_a_named_machine_by_hand(plan) -> None:
    """16.06 GB at 3.35 TB/s; 0.9 × 80 GB less the weights for K and V of 128 KiB a token."""
    made = plan("llama-3-8b", "--hardware", "h100", "--input-len", 1024, "--output-len", 256)
    assert made["hardware"] == {**made["hardware"], "name": "NVIDIA H100 SXM", "source": "data sheet"}
    assert made["weights_bytes"] / 1e9 == pytest.approx(16.06, abs=0.01)
    assert made["kv_bytes_per_token"] == 131_072
    assert made["kv_cache_bytes"] == pytest.approx(
        0.9 * 80e9 - made["weights_bytes"], abs=made["block_bytes"]
    )
    read = made["weights_bytes"] - 128_256 * 4096 * 2
    assert made["decode_tok_s_limit"] == pytest.approx(3.35e12 / read, rel=1e-3)
    assert made["ridge_batch"] == pytest.approx(295.3, abs=0.5)
    assert made["speed"]["ridge_intensity_flops_per_byte"] == pytest.approx(295.4, abs=0.1)
    assert made["speed"]["is_least_time"]
    assert made["speed"]["capacity_batch"] == (0.9 * 80e9 - made["weights_bytes"]) // (1280 * 131_072)
    first = made["speed"]["first_bound"]
    assert first["resource"] == "memory bandwidth"
    assert first["batch"] == -(-made["weights_bytes"] // (1152 * 131_072))


def test_requantised_weights_are_planned(plan) -> None:
    made = plan("llama-3-8b", "--hardware", "h100", "--weights", "q4_0")
    assert made["weights_bytes"] == pytest.approx(16.06e9 / 2 * 18 / 32, rel=1e-3)


def test_a_machine_without_a_published_peak_has_no_prefill_limit(capsys, plan) -> None:
    made = plan("llama-3-8b", "--hardware", "m4-max")
    assert made["prefill_tok_s_limit"] is made["ridge_batch"] is made["speed"]["ttft_s"] is None
    assert made["recommended"]["max_num_batched_tokens"]["value"] >= 512
    assert made["decode_tok_s_limit"] > 0
    assert run(["plan", "llama-3-8b", "--hardware", "m4-max"]) == 0
    text = capsys.readouterr().out
    assert "no compute peak is published" in text
    assert "unknown without a compute peak" in text


def test_limits_of_latency_and_a_rate_are_judged(capsys) -> None:
    command = ["plan", "llama-3-8b", "--hardware", "h100", "--goodput", "ttft:1", "tpot:20"]
    assert run([*command, "--rate", "5"]) == 0
    text = capsys.readouterr().out
    assert "misses 1 ms" in text
    assert "requests within 20 ms" in text
    assert "5 requests/s keep" in text
    assert "data sheet" in text
    assert run([*command, "--rate", "5000"]) == 0
    assert "too many" in capsys.readouterr().out
    assert run(["plan", "llama-3-8b", "--hardware", "h100", "--goodput", "tpot:0.001"]) == 0
    assert "not even one request" in capsys.readouterr().out


def test_weights_that_do_not_fit_are_said_so(capsys, plan) -> None:
    made = plan("llama-3-70b", "--hardware", "rtx-4090")
    assert made["recommended"]["max_num_seqs"]["value"] is None
    assert run(["plan", "llama-3-70b", "--hardware", "rtx-4090"]) == 0
    assert "the weights don't fit" in capsys.readouterr().out


def test_machines_are_listed(capsys) -> None:
    assert run(["plan", "--list-hardware"]) == 0
    text = capsys.readouterr().out
    assert "mi300x" in text
    assert "epyc-9654" in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["llama-3-8b", "--hardware", "h10"], "hardware='h10'"),
        (["llama-9-8b"], "llama-3-8b"),
        (["llama-3-8b", "--weights", "q9"], "weights='q9'"),
        (["llama-3-8b", "--hardware", "h100", "--input-len", "0"], "input_len=0"),
        (["llama-3-8b", "--hardware", "h100", "--output-len", "9000"], "output_len=9000"),
        (["llama-3-8b", "--hardware", "h100", "--rate", "0"], "rate=0"),
        (["llama-3-8b", "--hardware", "h100", "--goodput", "tpot:0"], "tpot=0"),
        (["llama-3-8b", "--hardware", "h100", "--goodput", "e2el:5"], "goodput='e2el'"),
        (["llama-3-8b", "--num-threads", "0"], "num_threads=0"),
    ],
)
def test_wrong_workloads_and_names_are_refused(capsys, arguments: list[str], named: str) -> None:
    assert run(["plan", *arguments]) == 2
    assert named in capsys.readouterr().err
