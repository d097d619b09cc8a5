"""The benchmark itself, on a tiny model and a fake peer, and its page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ridgeline.bench.offline import run_benchmark, step_overheads
from ridgeline.bench.peers import SAME_FILE, Peer
from ridgeline.bench.results import render_results
from ridgeline.core.events import StepFinished
from ridgeline.llm import LLM

TINY = Path(__file__).parents[1] / "golden" / "fixtures" / "tiny-llama-q4_1.gguf"
KEYS = ["load_s", "prefill_20_tok_s", "decode_b2_depth3_tok_s", "e2e_b3_5in_4out_out_tok_s"]


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    script = tmp_path_factory.mktemp("peer") / "fake.py"
    script.write_text(
        "import json, sys\nkey = sys.argv[sys.argv.index('--only') + 1]\n"
        "value = {'load_s': 1e-9}.get(key, 1e-3)\n"
        "print(json.dumps({'version': 'fake 1', key: {'median': value, 'others_cpu': 0.0}}))"
    )
    python = Path(sys.executable)
    peers = [Peer(SAME_FILE, python, script), Peer("partial", python, script, keys="prefill_.*")]
    return run_benchmark(
        lambda: LLM(str(TINY), enable_prefix_caching=False, num_threads=1),
        keys=KEYS,
        repeats=3,
        report=lambda _: None,
        peers=peers,
        rounds=2,
    )


def test_each_key_has_its_samples_and_fractions(document):
    for key in KEYS:
        figures = document[key]
        assert len(figures["runs"]) == 4  # two in each of two rounds
        assert figures["min"] <= figures["median"] <= figures["max"]
        assert figures["others_cpu"] >= 0
    for key in KEYS[1:]:
        assert document[key]["of_read_bandwidth"] > 0
        assert document[key]["of_kernel_peak"] > 0
    assert 0 < document["decode_b2_depth3_tok_s"]["step_overhead_share"] < 1
    assert document["decode_b2_depth3_tok_s"]["step_overhead_s"] > 0
    assert "of_read_bandwidth" not in document["load_s"]


def test_peers_stand_beside_with_ratios(document):
    assert set(document["peers"]) == {SAME_FILE, "partial"}
    assert set(document["peers"]["partial"]) == {"version", "prefill_20_tok_s"}
    assert len(document["peers"][SAME_FILE]["load_s"]["runs"]) == 2
    for key in KEYS[1:]:
        assert document["ratios"][key]["same_file"]["min"] > 1000
    assert document["ratios"]["load_s"]["best"]["median"] < 1


def test_the_page_says_where_a_peer_is_ahead(document):
    page = render_results(document, "ridgeline bench engine")
    assert "    ridgeline bench engine\n" in page
    assert "A peer is ahead of ridgeline in: `load_s`." in page
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == KEYS + KEYS
    assert str(document["time"]) in page


def test_a_page_without_peers_and_with_a_noisy_machine(document):
    quiet = {**document, "load_s": {**document["load_s"], "others_cpu": 0.0}}
    noisy = {**document, "load_s": {**document["load_s"], "others_cpu": 0.5}}
    for page_document in (quiet, noisy):
        del page_document["peers"]
    row = "| `load_s` |"
    pages = [render_results(page_document, "c").splitlines() for page_document in (quiet, noisy)]
    assert ["†" in line for page in pages for line in page if line.startswith(row)] == [False, True]


def test_the_overhead_of_a_step_is_what_no_native_op_took():
    steps = [
        StepFinished(10.0, 0, (), 1.0, {"a": 5.0}),
        StepFinished(12.0, 1, (), 1.0, {"a": 1.0, "sample": 0.5}),
        StepFinished(16.0, 2, (), 1.0, {"a": 3.0}),
    ]
    assert step_overheads(steps) == [(0.5, 0.25), (1.0, 0.25)]
    assert step_overheads(steps[:1]) == []
