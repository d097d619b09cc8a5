"""How exact is the load generator's client, and how much stream does one core take?

    python benchmarks/load_client.py [--json FILE]

A scripted server in another process sends tokens at programmed instants. Exactness: 200 requests at 20 a
second, first token after 100 ms, 20 gaps of 10 ms; the server also notes when it wrote, so that its own
lateness is told apart from the client's. Throughput: 64 streams as fast as the server writes them, the
client pinned to one core. To be run on a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from itertools import pairwise
from multiprocessing.connection import Connection

from ridgeline.loadgen.benchmark import execute_load, plan_load
from ridgeline.loadgen.settings import DatasetSettings, TargetSettings, TrafficSettings
from ridgeline.metrics.client_record import ClientRecord
from ridgeline.metrics.durations import icl_s
from ridgeline.metrics.percentiles import percentile
from ridgeline.workload.synthetic import RandomLengths

FIRST_S, GAP_S, NUM_TOKENS = 0.100, 0.010, 21
STREAMS, STREAM_TOKENS = 64, 400


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ours.recv()}"
    try:
        document = {"exactness": exactness(url, ours), "throughput": throughput(url)}
    finally:
        server.terminate()
    print(json.dumps(document, indent=2))
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(document, file, indent=2)


def exactness(url: str, server: Connection) -> dict[str, object]:
    records = run(url, count=200, rate=20.0, output_len=NUM_TOKENS)
    server.send("instants")
    written = server.recv()
    ttft_ms = [1000 * (r.chunks[0].at_s - r.sent_at_s - FIRST_S) for r in records]
    gap_ms = [1000 * (gap - GAP_S) for r in records for gap in icl_s(r)]
    wire_ms, gap_error_ms = [], []
    for record in records:
        sent = written[record.request_id]
        arrived = [chunk.at_s for chunk in record.chunks]
        wire_ms += [1000 * (at - out) for at, out in zip(arrived, sent, strict=True)]
        pairs = zip(pairwise(arrived), pairwise(sent), strict=True)
        gap_error_ms += [abs(1000 * ((b - a) - (d - c))) for (a, b), (c, d) in pairs]
    return {
        "requests": len(records),
        "ttft_over_programmed_ms": spread(ttft_ms),
        "gap_over_programmed_ms": spread(gap_ms),
        "gap_beside_the_servers_own_ms": spread(gap_error_ms),
        "write_to_stamp_ms": spread(wire_ms),
        "lateness_ms": spread([1000 * (r.sent_at_s - r.scheduled_at_s) for r in records]),
    }


def throughput(url: str) -> dict[str, object]:
    """The server writes as fast as it can, so what is measured is the slower of the two: at least ours."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        records = run(url, count=STREAMS, rate=float("inf"), output_len=STREAM_TOKENS)
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    finally:
        os.sched_setaffinity(0, allowed)
    tokens = sum(len(record.chunks) for record in records)
    return {
        "streams": STREAMS,
        "tokens": tokens,
        "tokens_per_s_of_wall": tokens / wall_s,
        "tokens_per_s_of_one_core": tokens / cpu_s,
        "client_us_per_token": 1e6 * cpu_s / tokens,
    }


def run(url: str, *, count: int, rate: float, output_len: int) -> list[ClientRecord]:
    lengths = RandomLengths(input_len=8, output_len=output_len)
    plan = plan_load(
        TargetSettings(url=url, model="m"),
        DatasetSettings(num_prompts=count, random=lengths),
        TrafficSettings(request_rate=rate),
    )
    return list(execute_load(plan).records)


def spread(values: list[float]) -> dict[str, float | int | None]:
    return {"n": len(values), **{f"p{p}": percentile(values, p) for p in (50, 90, 99)}, "max": max(values)}


def serve(pipe: Connection) -> None:
    asyncio.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    written: dict[str, list[float]] = {}
    listener = await asyncio.start_server(lambda r, w: _answer(r, w, written), "127.0.0.1", 0)
    pipe.send(listener.sockets[0].getsockname()[1])
    loop = asyncio.get_running_loop()
    loop.add_reader(pipe.fileno(), lambda: pipe.recv() and pipe.send(written))
    await asyncio.Event().wait()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, written: dict[str, list[float]]
) -> None:
    while head := await _head(reader):
        arrived_s = time.monotonic()
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        instants = written.setdefault(headers["x-request-id"], [])
        count = body["max_tokens"]
        for index in range(count):
            if count == NUM_TOKENS:
                await _sleep_until(arrived_s + FIRST_S + index * GAP_S)
            event = b"data: %s\n\n" % json.dumps(_chunk(index, is_last=index == count - 1)).encode()
            instants.append(time.monotonic())
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await (writer.drain() if count == NUM_TOKENS else asyncio.sleep(0))
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()


def _chunk(index: int, *, is_last: bool) -> dict[str, object]:
    choice = {"index": 0, "text": " word", "logprobs": None, "finish_reason": "length" if is_last else None}
    usage = {"prompt_tokens": 8, "total_tokens": 9 + index, "completion_tokens": 1 + index}
    return {"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": [choice], "usage": usage}


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


async def _sleep_until(at_s: float) -> None:
    """The loop's own timer to within 2 ms, then by spinning through its turns."""
    while (left_s := at_s - time.monotonic()) > 0:
        await asyncio.sleep(left_s - 0.002 if left_s > 0.003 else 0)


if __name__ == "__main__":
    main()
