"""The short form of benchmarks/soak.py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from benchmarks.soak import make_jobs, run_jobs, slope, slope_ci95, wrong_answers
from tests.server.conftest import Served
from tests.server.test_disconnects import wait_until_idle

from ridgeline.llm import LLM


def test_many_clients_leave_nothing_behind(tiny_server: Served, tiny_model: Path) -> None:
    jobs = make_jobs(300, Random(7), max_prompt_len=60, max_tokens=60)
    outcome = asyncio.run(run_jobs(tiny_server.url, jobs))
    assert set(outcome.counts) == {"finished", "left", "refused"}
    assert outcome.counts["refused"] == sum(job.rubbish is not None for job in jobs)
    wait_until_idle(tiny_server)
    with LLM(str(tiny_model), num_threads=1) as llm:
        assert wrong_answers(llm, outcome.answers) == 0


def test_a_slope_comes_with_its_uncertainty() -> None:
    assert slope([(x, 5.0 + 2 * x) for x in range(9)]) == 2.0
    noise = Random(3)
    flat = [(float(x), noise.gauss(0, 1)) for x in range(200)]
    rising = [(x, y + 0.1 * x) for x, y in flat]
    low, high = slope_ci95(flat, Random(1))
    assert low < 0 < high < 0.05
    low, high = slope_ci95(rising, Random(1))
    assert 0 < low < 0.1 < high
