"""Many clients for a long time: good ones, ones that leave amid their answer, and ones that send rubbish.

At the end nothing runs, waits or holds blocks, every finished answer equals the offline engine's, and the
server's memory is flat (its slope after the first third is reported, with where it lies with 95 %).
Usage: python -m benchmarks.soak [--requests 2000] [--json F]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp
from benchmarks.server_overhead import start_server

from ridgeline import LLM, SamplingParams

NUM_CLIENTS = 64
DISCONNECTING, MALFORMED = 0.2, 0.1
NUM_BLOCKS = 10
KV_CACHE_BYTES = 256 << 20
"""Small, so that every block is soon touched: until then memory grows by the KV cache that is used."""
RUBBISH = (
    b"",
    b"{",
    b"[]",
    b'{"prompt": 5}',
    b'{"prompt": "a", "n": 0}',
    b'{"prompt": [99999999]}',
    b"\xff\xfe",
)


@dataclass(frozen=True)
class Job:
    """One request: `leaves_after` chunks it disconnects; `rubbish` is sent in place of a good body."""

    prompt: tuple[int, ...]
    max_tokens: int
    leaves_after: int | None = None
    rubbish: bytes | None = None


@dataclass
class Outcome:
    """What came of all jobs; `answers` of those that finished."""

    answers: dict[Job, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


def make_jobs(num_jobs: int, random: Random, *, max_prompt_len: int, max_tokens: int) -> list[Job]:
    """Mixed lengths; 20 % leave at a random point, 10 % are malformed."""
    jobs = []
    for _ in range(num_jobs):
        prompt = tuple(random.randrange(3, 250) for _ in range(random.randint(1, max_prompt_len)))
        length, kind = random.randint(1, max_tokens), random.random()
        if kind < MALFORMED:
            jobs.append(Job(prompt, length, rubbish=random.choice(RUBBISH)))
        elif kind < MALFORMED + DISCONNECTING:
            jobs.append(Job(prompt, length, leaves_after=random.randrange(length)))
        else:
            jobs.append(Job(prompt, length))
    return jobs


async def run_jobs(url: str, jobs: Sequence[Job], num_clients: int = NUM_CLIENTS) -> Outcome:
    """Play all jobs, `num_clients` at a time."""
    outcome, queue = Outcome(), list(reversed(jobs))
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def client() -> None:
            while queue:
                job = queue.pop()
                outcome.counts[await play(session, url, job, outcome)] += 1

        await asyncio.gather(*[client() for _ in range(num_clients)])
    return outcome


async def play(session: aiohttp.ClientSession, url: str, job: Job, outcome: Outcome) -> str:
    """One job; what became of it."""
    body = {
        "prompt": job.prompt,
        "max_tokens": job.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    content = job.rubbish if job.rubbish is not None else json.dumps(body).encode()
    async with session.post(f"{url}/v1/completions", data=content) as response:
        if job.rubbish is not None:
            return "refused" if response.status == 400 else f"rubbish answered {response.status}"
        if response.status != 200:
            return f"status {response.status}"
        text, num_chunks, is_done = "", 0, False
        async for line in response.content:
            if job.leaves_after is not None and num_chunks >= job.leaves_after:
                response.close()
                return "left"
            if line.startswith(b"data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                num_chunks += 1
            is_done = is_done or line.startswith(b"data: [DONE]")
    if not is_done:
        return "cut"
    outcome.answers[job] = text
    return "finished"


def wrong_answers(llm: LLM, answers: dict[Job, str]) -> int:
    """Answers that differ from the offline engine's."""
    jobs = list(answers)
    params = [SamplingParams(max_tokens=job.max_tokens, temperature=0, ignore_eos=True) for job in jobs]
    outputs = llm.generate([list(job.prompt) for job in jobs], params, progress=False)
    return sum(o.outputs[0].text != answers[job] for o, job in zip(outputs, jobs, strict=True))


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares of y over x."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def slope_ci95(points: Sequence[tuple[float, float]], random: Random) -> tuple[float, float]:
    """Where the slope lies with 95 %: a bootstrap of blocks of residuals, for they hang together in time.

    Source: Künsch, "The jackknife and the bootstrap for general stationary observations" (1989).
    """
    steepness, length = slope(points), max(1, len(points) // NUM_BLOCKS)
    mean_x, mean_y = (sum(each[i] for each in points) / len(points) for i in (0, 1))
    line = [mean_y + steepness * (x - mean_x) for x, _ in points]
    residuals = [y - fitted for (_, y), fitted in zip(points, line, strict=True)]
    slopes = []
    for _ in range(1000):
        drawn: list[float] = []
        while len(drawn) < len(points):
            start = random.randrange(len(points) - length + 1)
            drawn += residuals[start : start + length]
        slopes.append(slope([(x, y + r) for (x, _), y, r in zip(points, line, drawn, strict=False)]))
    slopes.sort()
    return slopes[24], slopes[974]


async def soak(url: str, pid: int, jobs: Sequence[Job]) -> dict[str, object]:
    """The run and what it left behind in the server."""
    memory: list[tuple[float, float]] = []

    async def watch() -> None:
        while True:
            memory.append((time.monotonic() / 60, rss_bytes(pid)))
            await asyncio.sleep(0.5)

    watching = asyncio.create_task(watch())
    outcome = await run_jobs(url, jobs)
    await asyncio.sleep(1)
    watching.cancel()
    steady, shown = memory[len(memory) // 3 :], memory[:: max(1, len(memory) // 50)]
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        page = await response.text()
    gauges = dict(
        re.findall(r"^ridgeline:(num_requests_\w+|kv_cache_usage_perc)\S* ([\d.e+-]+)$", page, re.M)
    )
    return {
        "outcome": outcome,
        "counts": dict(outcome.counts),
        "left_behind": gauges,
        "rss_start_bytes": memory[0][1],
        "rss_end_bytes": memory[-1][1],
        "rss_slope_bytes_per_min": slope(steady),
        "rss_slope_ci95_bytes_per_min": slope_ci95(steady, Random(1)),
        "rss_bytes_by_s": [(round(60 * (at - memory[0][0]), 1), rss) for at, rss in shown],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--json", help="file for the result")
    args = parser.parse_args()
    jobs = make_jobs(args.requests, Random(1), max_prompt_len=200, max_tokens=96)
    server, url = start_server(args.model, "--kv-cache-bytes", str(KV_CACHE_BYTES))
    try:
        report = asyncio.run(soak(url, server.pid, jobs))
    finally:
        server.terminate()
        server.wait()
    outcome = report.pop("outcome")
    assert isinstance(outcome, Outcome)
    with LLM(args.model) as llm:
        report["wrong_answers"] = wrong_answers(llm, outcome.answers)
    text = json.dumps(report, indent=2)
    if args.json:
        Path(args.json).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
