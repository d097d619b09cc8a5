"""What the HTTP server costs: output tokens per second through it and without it, in one run.

32 streams of equal length, by the offline engine and over HTTP from a client in a process of its own, in
turns whose order alternates. Where the engine uses every core, the client's CPU seconds come out of the
engine's: they are counted while it reads, and `ratio_client_apart` leaves them out, spread over the cores.
`ratio` leaves nothing out. Usage: python -m benchmarks.server_overhead [--rounds 8] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

from ridgeline import LLM, SamplingParams

# Counts events and does nothing else: blocking sockets behind one selector, no HTTP library.
CLIENT = """
import json, selectors, socket, sys, time

host, port, num_streams, num_tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
fields = {"max_tokens": num_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
selector = selectors.DefaultSelector()
started_at_s, cpu_at_start_s = time.perf_counter(), time.process_time()
for i in range(num_streams):
    body = json.dumps({**fields, "prompt": [500 + i, 600, 700, 800]}).encode()
    connection = socket.create_connection((host, port))
    head = f"POST /v1/completions HTTP/1.1\\r\\nHost: {host}\\r\\nContent-Length: {len(body)}\\r\\n"
    connection.sendall(head.encode() + b"Content-Type: application/json\\r\\n\\r\\n" + body)
    selector.register(connection, selectors.EVENT_READ)
num_chunks = num_done = 0
while num_done < num_streams:
    for key, _ in selector.select():
        data = key.fileobj.recv(65536)
        assert data, "the connection ended before [DONE]"
        num_chunks += data.count(b"data: {")
        if b"[DONE]" in data:
            num_done += 1
            selector.unregister(key.fileobj)
wall_s, cpu_s = time.perf_counter() - started_at_s, time.process_time() - cpu_at_start_s
print(json.dumps({"wall_s": wall_s, "chunks": num_chunks, "cpu_s": cpu_s}))
"""


def offline_tokens_per_s(llm: LLM, num_streams: int, num_tokens: int) -> float:
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=0)
    prompts = [[500 + i, 600, 700, 800] for i in range(num_streams)]
    started_at_s = time.perf_counter()
    llm.generate(prompts, params, progress=False)
    return num_streams * num_tokens / (time.perf_counter() - started_at_s)


def served(url: str, num_streams: int, num_tokens: int) -> dict[str, float]:
    host, port = url.removeprefix("http://").rsplit(":", 1)
    command = [sys.executable, "-c", CLIENT, host, port, str(num_streams), str(num_tokens)]
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
            for place in range(args.rounds):
                rounds.append(one_round(llm, url, args, is_server_first=place % 2 == 1))
    finally:
        server.terminate()
        server.wait()
    quartiles = {
        name: statistics.quantiles((each[name] for each in rounds), n=4)
        for name in ("ratio", "ratio_client_apart")
    }
    return {"quartiles": quartiles, "rounds": rounds}


def one_round(llm: LLM, url: str, args: argparse.Namespace, *, is_server_first: bool) -> dict[str, float]:
    if is_server_first:
        run = served(url, args.streams, args.tokens)
    offline = offline_tokens_per_s(llm, args.streams, args.tokens)
    if not is_server_first:
        run = served(url, args.streams, args.tokens)
    num_tokens = args.streams * args.tokens
    wall_without_client_s = run["wall_s"] - run["cpu_s"] / (os.cpu_count() or 1)
    return {
        "offline_tokens_per_s": offline,
        "server_tokens_per_s": num_tokens / run["wall_s"],
        "ratio": num_tokens / run["wall_s"] / offline,
        "ratio_client_apart": num_tokens / wall_without_client_s / offline,
        "client_cpu_s": run["cpu_s"],
        "chunks": run["chunks"],
        "tokens": num_tokens,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", help="file for the result")
    args = parser.parse_args()
    text = json.dumps(measure(args), indent=2)
    if args.json:
        with open(args.json, "w") as file:
            file.write(text)
    print(text)


if __name__ == "__main__":
    main()
