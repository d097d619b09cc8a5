"""A server that answers chats at programmed instants, so that tools which time a stream can be held to them.

    python benchmarks/scripted_chats.py --port 8200

Each answer: 80 ms, then 32 tokens, 12 ms apart, whatever the request says. So TTFT is 80 ms, TPOT and ITL are
12 ms, E2E is 452 ms, GuideLLM's TPOT 14.1 ms; what a tool tells above that is its own and the machine's. The
role comes in one write with the first token, as ridgeline sends it. What tools said: docs/clients.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence

MODEL = "scripted"
FIRST_S, GAP_S, NUM_TOKENS, NUM_PROMPT_TOKENS = 0.080, 0.012, 32, 94


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8200)
    parser.add_argument("--model", default=MODEL, help="the name at /v1/models")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.model))


async def serve(port: int, model: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await read_request(reader)) is not None:
                path, body = request
                if path == "/v1/chat/completions":
                    await stream(writer, json.loads(body))
                else:
                    writer.write(whole({"object": "list", "data": [{"id": model, "object": "model"}]}))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the tool left
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    print(f"http://127.0.0.1:{port}", flush=True)
    await server.serve_forever()


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes] | None:
    """Path and body; None at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *fields = head.decode("latin-1").split("\r\n")
    sizes = [field.partition(":")[2] for field in fields if field.lower().startswith("content-length:")]
    return line.split()[1], await reader.readexactly(int(sizes[0]) if sizes else 0)


async def stream(writer: asyncio.StreamWriter, asked: dict) -> None:
    """One answer; every instant is counted from the request's arrival."""
    loop = asyncio.get_running_loop()
    arrived_at_s = loop.time()
    has_usage = bool((asked.get("stream_options") or {}).get("continuous_usage_stats"))
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for index in range(NUM_TOKENS):
        await asyncio.sleep(arrived_at_s + FIRST_S + GAP_S * index - loop.time())
        deltas = [{"content": " time"}]
        if index == 0:
            deltas.insert(0, {"role": "assistant", "content": ""})
        finish_reason = "length" if index == NUM_TOKENS - 1 else None
        choices = [{"index": 0, "delta": delta, "finish_reason": finish_reason} for delta in deltas]
        usage = usage_of(index + 1) if has_usage else None
        writer.write(piece([{"choices": [choice], "usage": usage} for choice in choices]))
    writer.write(
        piece([{"choices": [], "usage": usage_of(NUM_TOKENS)}], end="data: [DONE]\n\n") + b"0\r\n\r\n"
    )


def piece(documents: Sequence[dict], end: str = "") -> bytes:
    """Events as one chunk of HTTP."""
    head = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
    data = ("".join(f"data: {json.dumps(head | document)}\n\n" for document in documents) + end).encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def usage_of(num_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": NUM_PROMPT_TOKENS,
        "completion_tokens": num_tokens,
        "total_tokens": NUM_PROMPT_TOKENS + num_tokens,
    }


def whole(document: dict) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


if __name__ == "__main__":
    main()
