"""What the HTTP server costs: output tokens per second through it and without it, in one run.

32 streams of equal length, once by the offline engine and once over HTTP from a client in a process of its
own, in turn, `--rounds` times. The client's own CPU seconds are counted apart: on a small machine they come
out of the engine's. Usage: python benchmarks/server_overhead.py [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time

from ridgeline import LLM, SamplingParams

CLIENT = """
import asyncio, json, resource, sys, time
import aiohttp

async def one(session, url, body):
    num_chunks = 0
    async with session.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            num_chunks += line.startswith(b'data: {')
    return num_chunks

async def main(url, num_streams, num_tokens):
    body = {"max_tokens": num_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        started_at_s = time.perf_counter()
        chunks = await asyncio.gather(
            *[one(session, url, {**body, "prompt": [500 + i, 600, 700, 800]}) for i in range(num_streams)]
        )
        wall_s = time.perf_counter() - started_at_s
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"wall_s": wall_s, "chunks": sum(chunks), "cpu_s": usage.ru_utime + usage.ru_stime}))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


def offline_tokens_per_s(llm: LLM, num_streams: int, num_tokens: int) -> float:
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=0)
    prompts = [[500 + i, 600, 700, 800] for i in range(num_streams)]
    started_at_s = time.perf_counter()
    llm.generate(prompts, params, progress=False)
    return num_streams * num_tokens / (time.perf_counter() - started_at_s)


def served(url: str, num_streams: int, num_tokens: int) -> dict[str, float]:
    command = [sys.executable, "-c", CLIENT, f"{url}/v1/completions", str(num_streams), str(num_tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def start_server(model: str, *options: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "ridgeline", "serve", "--model", model, "--port", "0", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        found = re.match(r"ready (http://\S+)", line)
        if found:
            return server, found.group(1)
    raise SystemExit("the server did not start")


def measure(args: argparse.Namespace) -> dict[str, object]:
    server, url = start_server(args.model)
    rounds = []
    try:
        with LLM(args.model) as llm:
            offline_tokens_per_s(llm, args.streams, 8)
            served(url, args.streams, 8)
            for _ in range(args.rounds):
                offline = offline_tokens_per_s(llm, args.streams, args.tokens)
                run = served(url, args.streams, args.tokens)
                online = args.streams * args.tokens / run["wall_s"]
                rounds.append(
                    {
                        "offline_tokens_per_s": offline,
                        "server_tokens_per_s": online,
                        "ratio": online / offline,
                        "client_cpu_s": run["cpu_s"],
                        "chunks": run["chunks"],
                        "tokens": args.streams * args.tokens,
                    }
                )
    finally:
        server.terminate()
        server.wait()
    return {"median_ratio": statistics.median(r["ratio"] for r in rounds), "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="file for the result")
    args = parser.parse_args()
    text = json.dumps(measure(args), indent=2)
    if args.json:
        with open(args.json, "w") as file:
            file.write(text)
    print(text)


if __name__ == "__main__":
    main()
