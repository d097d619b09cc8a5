"""What the comparison with vLLM makes of two servers' metrics and of what clients saw."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.perf.priced_machine import PROFILE

from benchmarks import vllm_side_by_side as side

VLLM = """# HELP vllm:request_queue_time_seconds time in WAITING
vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} 0.5
vllm:request_queue_time_seconds_count{engine="0",model_name="m"} 2.0
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3"} 1.0
vllm:e2e_request_latency_seconds_sum{engine="0"} 3.0
vllm:e2e_request_latency_seconds_count{engine="0"} 2.0
vllm:num_requests_running{engine="0"} 3.0
"""
RUN = side.ServerRun(
    name="ridgeline",
    queue_s=0.01,
    prefill_s=0.1,
    decode_s=0.3,
    server_e2e_s=0.42,
    client_e2e_s=0.45,
    client_ttft_s=0.12,
    tpot_s=0.01,
    num_steps=90.0,
    tokens_per_step=4.5,
    output_tok_s=80.0,
    running=[(0.3, 0.0), (0.6, 2.0), (0.9, 12.0)],
    waiting=[(0.3, 0.0)],
)
LENGTHS = side.Lengths(num_prompts=26, input_len=128, output_len=32, rate=0.5)


@pytest.mark.parametrize("prefix", ["vllm:", "ridgeline:", "ridgeline_"])
def test_histograms_are_found_under_any_prefix_and_differences_are_means(prefix: str) -> None:
    found = side.histograms(VLLM.replace("vllm:", prefix))
    assert set(found) == {"queue", "e2e"}
    assert found["queue"].since(side.Histogram(0.1, 1.0)).mean == pytest.approx(0.4)
    assert found["e2e"].since(found["e2e"]).mean is None
    assert side.samples(VLLM.replace("vllm:", prefix))["num_requests_running"] == 3.0


def test_time_outside_the_engine_is_what_no_phase_accounts_for() -> None:
    assert RUN.outside_s == pytest.approx(0.04)
    assert replace(RUN, prefill_s=None).outside_s is None
    assert RUN.mean_running == 7.0
    assert side.composition(RUN.running) == ".2+"


def test_the_page_has_every_step_of_both_and_reasons_in_numbers() -> None:
    theirs = replace(RUN, name="vLLM", tpot_s=0.05, queue_s=None)
    peaks = {**PROFILE.matmul_flops_per_s, "F32": ((1, 1e9), (8, 1e9))}
    profile = replace(PROFILE, matmul_flops_per_s=peaks)
    why = side.explanations(RUN, theirs, profile, LENGTHS)
    page = side.markdown(RUN, theirs, why, LENGTHS)
    for words in (
        "| queue | 10.0 ms | – | – |",
        "| TPOT, client, median | 10.0 ms | 50.0 ms | 5.0 |",
        "24 requests",
    ):
        assert words in page
    least = [
        side.least_step_s(shape, profile, batch=1, context=144)
        for shape in (side.default_shape(), side.float32_shape())
    ]
    assert least[1] > least[0]
    assert f"make a step {least[1] / least[0]:.1f} × as long" in page
    assert "measured tokens are 5.0 × as long" in page
    assert "**prefill, vLLM**: 128 tokens must take" in page
    assert "it took 100.0 ms" in page


def test_a_server_that_does_not_start_ends_the_run_with_its_own_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with (
        pytest.raises(SystemExit, match="did not start:\nno such model"),
        side.server(command, "http://127.0.0.1:9", {}, tmp_path / "log"),
    ):
        pass


def test_a_server_is_ended_with_all_it_started(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(side, "is_ready", lambda url: (tmp_path / "child").exists())
    program = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"path = pathlib.Path({str(tmp_path / 'child.new')!r})\n"
        "path.write_text(str(child.pid))\n"
        "path.rename(path.with_suffix(''))\n"
        "time.sleep(60)\n"
    )
    with side.server([sys.executable, "-c", program], "http://127.0.0.1:9", {}, tmp_path / "log"):
        child = int((tmp_path / "child").read_text())
    assert ends_within(child, seconds=20)


def ends_within(pid: int, *, seconds: float) -> bool:
    """Whether a process is gone, or dead and not yet collected by whoever inherits it."""
    state = Path(f"/proc/{pid}/stat")
    for _ in range(int(seconds * 100)):
        try:
            if state.read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False
