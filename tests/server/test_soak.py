"""The short form of benchmarks/soak.py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from benchmarks.soak import make_jobs, run_jobs, slope, wrong_answers
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


def test_the_slope_is_that_of_the_line_after_warm_up() -> None:
    assert slope([(x, 100.0 if x < 3 else 5.0 + 2 * x) for x in range(9)]) == 2.0
