"""What prompts of 100 kB do to the streams that run when they arrive: gaps between tokens, with and without.

In turn, `--rounds` times, with the same streams each time:

    alone       nothing else arrives
    bytes       2 MB of text: refused by its length, untokenised
    refused     100 kB of English: tokenised, and refused as too long for the context
    chat        the same as a message, through the chat template
    cached      100 kB of the vocabulary's longest words, which fit: tokenised, looked up, found in the cache
    computed    one of the same in another order: its chunks share steps with the streams

All but the last cost text work only, which is to hold up neither the event loop nor the engine. The last
shows what `--max-num-batched-tokens` makes of a step; pass server options after `--`. The client is a process
of its own. To be run on a quiet machine.

    python -m benchmarks.long_prompts [--json FILE] [-- --max-num-batched-tokens 128]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import aiohttp
from benchmarks.server_overhead import start_server

from ridgeline.metrics.percentiles import percentile

NUM_BYTES = 100_000
ARMS = ("alone", "bytes", "refused", "chat", "cached", "computed")
ENGLISH = """
the of and to in is that it was for on are as with they be at one have this from or had by word but what some
we can out other were all there when up use your how said an each she which do their time if will way about
"""
LONG_ENGLISH = """
characteristics responsibilities understanding environmental international responsibility transformation
communication infrastructure approximately sustainability organizations opportunities significantly
administration implementation investigation representation classification recommendations particularly
effectiveness consequences circumstances professionals technological independently extraordinary
comprehensive mathematical philosophical psychological archaeological revolutionary unprecedented
"""
WORDS, LONG_WORDS = ENGLISH.split(), LONG_ENGLISH.split()


@dataclass
class Arm:
    """What one kind of company did to the streams; seconds."""

    gaps_s: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    took_s: list[float] = field(default_factory=list)

    def document(self, alone: Arm) -> dict[str, object]:
        p99_s, alone_s = percentile(self.gaps_s, 99), percentile(alone.gaps_s, 99)
        return {
            "gaps": len(self.gaps_s),
            **{f"itl_p{p}_ms": _ms(percentile(self.gaps_s, p)) for p in (50, 90, 99)},
            "itl_max_ms": _ms(max(self.gaps_s, default=None)),
            "itl_p99_by_alone": round(p99_s / alone_s, 2) if p99_s and alone_s else None,
            "prompts": dict(self.answers),
            "prompt_p50_ms": _ms(percentile(self.took_s, 50)),
        }


class Client:
    """Streams that are timed, and long prompts that are only sent."""

    def __init__(self, session: aiohttp.ClientSession, url: str, options: argparse.Namespace) -> None:
        self._session = session
        self._url = url
        self._options = options
        self._random = Random(1)
        self._long_words: list[str] = []
        self._cached = ""

    async def prepare(self) -> None:
        """Of the long words those that are single tokens, and the text that is found in the cache later."""
        for word in LONG_WORDS:
            body = {"prompt": f" {word}"}
            async with self._session.post(f"{self._url}/tokenize", json=body) as response:
                if (await response.json())["count"] == 1:
                    self._long_words.append(word)
        self._cached = self._text(self._long_words)
        await self._send("cached", Arm())

    async def run(self, name: str, arm: Arm) -> None:
        """The streams, with prompts of this kind beside them until the first of them ends."""
        begun = [asyncio.Event() for _ in range(self._options.streams)]
        streams = [asyncio.create_task(self._stream(i, arm, event)) for i, event in enumerate(begun)]
        await asyncio.gather(*(event.wait() for event in begun))
        arrivals = asyncio.create_task(self._arrivals(name, arm))
        await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
        arrivals.cancel()
        await asyncio.gather(*streams)
        await asyncio.gather(arrivals, return_exceptions=True)

    async def _stream(self, number: int, arm: Arm, begun: asyncio.Event) -> None:
        body = {
            "prompt": f"Stream {number}:",
            "max_tokens": self._options.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        stamps_s: list[float] = []
        async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    stamps_s.append(time.perf_counter())
                    begun.set()
        arm.gaps_s += [later - earlier for earlier, later in pairwise(stamps_s)]

    async def _arrivals(self, name: str, arm: Arm) -> None:
        """At a steady rate, whatever the answers take; a computed one only once: it takes seconds."""
        if name == "alone":
            return
        async with asyncio.TaskGroup() as group:
            while True:
                sending = group.create_task(self._send(name, arm))
                await asyncio.sleep(1 / self._options.rate)
                if name == "computed":
                    await sending
                    return

    async def _send(self, name: str, arm: Arm) -> None:
        path, content = self._content(name)
        sent_at_s = time.perf_counter()
        headers = {"content-type": "application/json"}
        async with self._session.post(self._url + path, data=content, headers=headers) as response:
            answer = await response.json()
        arm.took_s.append(time.perf_counter() - sent_at_s)
        reason = answer.get("error", {}).get("code") or "answered"
        arm.answers[f"{response.status} {reason}"] += 1

    def _content(self, name: str) -> tuple[str, bytes]:
        if name == "chat":
            messages = [{"role": "user", "content": self._text(WORDS)}]
            return "/v1/chat/completions", json.dumps({"messages": messages, "max_tokens": 1}).encode()
        prompt = {
            "bytes": lambda: "word " * 400_000,
            "refused": lambda: self._text(WORDS),
            "cached": lambda: self._cached,
            "computed": lambda: self._text(self._long_words),
        }[name]()
        return "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 1}).encode()

    def _text(self, words: list[str]) -> str:
        """100 kB of these words in any order; long words as many as the context holds."""
        chosen, num_bytes, limit = [], 0, 8000 if words is self._long_words else NUM_BYTES
        while num_bytes < NUM_BYTES and len(chosen) < limit:
            chosen.append(self._random.choice(words))
            num_bytes += len(chosen[-1]) + 1
        return " " + " ".join(chosen)


async def client(url: str, options: argparse.Namespace) -> dict[str, object]:
    arms = {name: Arm() for name in ARMS if name == "alone" or name in options.arms}
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        one = Client(session, url, options)
        await one.prepare()
        await one.run("alone", Arm())
        for _ in range(options.rounds):
            for name, arm in arms.items():
                await one.run(name, arm)
    return {name: arm.document(arms["alone"]) for name, arm in arms.items()}


def measure(options: argparse.Namespace) -> dict[str, object]:
    server, url = start_server(options.model, *options.server_options)
    try:
        command = [
            sys.executable,
            "-m",
            "benchmarks.long_prompts",
            "--client",
            url,
            *_client_options(options),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    finally:
        server.terminate()
        server.wait()
    return {
        "streams": options.streams,
        "tokens": options.tokens,
        "prompts_per_s": options.rate,
        "rounds": options.rounds,
        "server_options": options.server_options,
        "arms": json.loads(done.stdout),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each stream")
    parser.add_argument("--rate", type=float, default=4.0, help="long prompts a second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--json", help="file for the result")
    parser.add_argument("--client", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("server_options", nargs="*", help="after --: options of ridgeline serve")
    options = parser.parse_args()
    if options.client:
        print(json.dumps(asyncio.run(client(options.client, options))))
        return
    text = json.dumps(measure(options), indent=2)
    if options.json:
        Path(options.json).write_text(text)
    print(text)


def _client_options(options: argparse.Namespace) -> list[str]:
    named = {name: str(getattr(options, name)) for name in ("streams", "tokens", "rate", "rounds")}
    return [word for name, value in named.items() for word in (f"--{name}", value)] + [
        "--arms",
        *options.arms,
    ]


def _ms(seconds: float | None) -> float | None:
    return round(1000 * seconds, 2) if seconds is not None else None


if __name__ == "__main__":
    main()
