"""Peers: which are found, how they are called, what their figures amount to. The peers here are fakes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ridgeline.bench.peers import (
    SAME_FILE,
    Peer,
    best_ratio,
    find_peers,
    measure_peer,
    parse_sample,
    ratio,
    same_file_ratio,
)
from ridgeline.errors import ConfigError

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "peers"


def test_a_ratio_is_above_one_where_ours_is_better():
    assert ratio([20, 30, 80], [10, 10, 20], less_is_better=False) == {"median": 3, "min": 2, "max": 4}
    assert ratio([1, 2], [4, 4], less_is_better=True) == {"median": 3, "min": 2, "max": 4}


def test_the_best_peer_is_the_one_with_the_best_median():
    peers = {"llama.cpp": [5, 5, 90], "other": [10, 10, 1]}
    assert best_ratio([20, 20, 20], peers, less_is_better=False) == {
        "name": "other",
        "median": 2,
        "min": 2,
        "max": 20,
    }
    assert best_ratio([20, 20, 20], peers, less_is_better=True)["name"] == "llama.cpp"
    assert same_file_ratio([20, 20, 20], peers, less_is_better=False) == {
        "median": 4,
        "min": 20 / 90,
        "max": 4,
    }
    assert same_file_ratio([1], {"other": [1]}, less_is_better=False) is None


def test_a_figure_is_an_object_or_a_plain_number():
    document = {
        "engine": "e",
        "version": "1",
        "model": "m",
        "a_tok_s": {"median": 4, "others_cpu": 0.5},
        "b_tok_s": 7,
        "c_tok_s": {"median": 4.5, "others_cpu": None},
    }
    sample = parse_sample(document, "a_tok_s")
    assert (sample.value, sample.others_cpu, sample.description) == (
        4.0,
        0.5,
        {"engine": "e", "version": "1"},
    )
    assert (parse_sample(document, "b_tok_s").value, parse_sample(document, "b_tok_s").others_cpu) == (
        7.0,
        0.0,
    )
    assert parse_sample(document, "c_tok_s").others_cpu == 0.0


def environment(directory: Path, name: str) -> None:
    python = directory / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()


def test_peers_are_found_by_their_environments(tmp_path):
    environment(tmp_path, "venv-llama")
    peers = find_peers(tmp_path, SCRIPTS)
    assert peers[0].name == SAME_FILE
    assert all(peer.script.is_file() and peer.measures("decode_b1_depth4096_tok_s") for peer in peers)
    without_flash = [peer for peer in peers if "--flash-attn" in peer.arguments]
    assert len(without_flash) == 2
    assert not any(peer.measures("decode_b1_tok_s") for peer in without_flash)
    requantised = [peer for peer in peers if "--requantize" in peer.arguments]
    assert {peer.arguments[peer.arguments.index("--requantize") + 1] for peer in requantised} == {
        "q4_0",
        "q8_0",
    }
    assert all(peer.arguments[-2:] == ("--requantized-dir", str(tmp_path)) for peer in requantised)
    environment(tmp_path, "venv-hf")
    transformers = find_peers(tmp_path, SCRIPTS)[-1]
    assert transformers.measures("prefill_512_tok_s")
    assert not transformers.measures("load_s")


def test_no_environment_and_no_checkout_are_named(tmp_path):
    with pytest.raises(ConfigError, match="venv-llama"):
        find_peers(tmp_path, SCRIPTS)
    environment(tmp_path, "venv-llama")
    with pytest.raises(ConfigError, match="source checkout"):
        find_peers(tmp_path, tmp_path / "nowhere")


def fake(tmp_path: Path, body: str) -> Peer:
    script = tmp_path / "fake.py"
    script.write_text(body)
    return Peer("fake", Path(sys.executable), script, ("--ubatch", "2048"))


def test_a_peer_is_asked_for_one_sample_of_one_key(tmp_path):
    peer = fake(
        tmp_path,
        "import json, sys\nfigures = {'median': 0.5, 'others_cpu': 0.1}\n"
        "print(json.dumps({'version': sys.argv[1:], 'load_s': figures}))",
    )
    sample = measure_peer(peer, "load_s", model_path=Path("m.gguf"), num_threads=3)
    expected = "--model m.gguf --threads 3 --repeats 1 --only load_s --json --ubatch 2048"
    assert sample.description["version"] == expected.split()
    assert (sample.value, sample.others_cpu) == (0.5, 0.1)


def test_a_peer_that_fails_is_named_with_its_last_word(tmp_path):
    peer = fake(tmp_path, "import sys\nprint('before', file=sys.stderr)\nsys.exit('no such quantisation')")
    with pytest.raises(ConfigError, match=r"fake.*no such quantisation"):
        measure_peer(peer, "load_s", model_path=Path("m.gguf"), num_threads=3)


@pytest.mark.parametrize("printed", ["nothing", "{}"])
def test_a_peer_that_prints_something_else_is_named(tmp_path, printed):
    with pytest.raises(ConfigError, match=r"fake.*printed no load_s"):
        measure_peer(fake(tmp_path, f"print({printed!r})"), "load_s", model_path=Path("m"), num_threads=3)


def test_the_scripts_are_there():
    assert {path.name for path in SCRIPTS.glob("*.py")} == {"bench_llama.py", "bench_hf.py", "peer_record.py"}
    for path in SCRIPTS.glob("*.py"):
        compile(path.read_text(), path.name, "exec")
