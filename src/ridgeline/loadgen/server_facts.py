"""What a server tells of itself before and after a run; whatever it does not tell is None."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ridgeline.errors import ConfigError
from ridgeline.loadgen.http_client import ConnectionFailedError, HttpClient, HttpRequest, NotHttpError

FACT_TIMEOUT_S = 10.0
_MAX_FACT_BYTES = 1 << 26


class _Answer:
    """A sink that keeps a short answer whole."""

    def __init__(self) -> None:
        self.status = 0
        self.content = bytearray()

    def head(self, status: int, headers: Mapping[str, str]) -> None:  # noqa: ARG002 - a Sink's
        """Keep the status."""
        self.status = status

    def body(self, piece: bytes, at_s: float) -> bool:  # noqa: ARG002 - a Sink's
        """Keep a piece."""
        self.content += piece
        return len(self.content) > _MAX_FACT_BYTES


class ServerFacts:
    """Questions to a server beside the run, with the run's own headers."""

    def __init__(self, http: HttpClient, headers: Mapping[str, str]) -> None:
        self._http = http
        self._headers = headers

    async def ask(self, path: str, question: object = None) -> Any | None:
        """The JSON that `path` answers with 200, to a POST where there is a question; None otherwise."""
        status, content = await self._exchange(path, question)
        if status != 200:
            return None
        try:
            return msgspec.json.decode(content)
        except ValueError:
            return None

    async def text(self, path: str) -> str | None:
        """The text that `path` answers with 200; None otherwise."""
        status, content = await self._exchange(path, None)
        return content.decode("utf-8", "replace") if status == 200 else None

    async def model_name(self) -> str:
        """The first model of `/v1/models`.

        Raises:
            ConfigError: the server names none.
        """
        models = await self.ask("/v1/models")
        entries = models.get("data") if isinstance(models, dict) else None
        first = entries[0] if isinstance(entries, list) and entries else None
        if isinstance(first, dict) and isinstance(first.get("id"), str) and first["id"].isprintable():
            return str(first["id"])
        status, _ = await self._exchange("/v1/models", None)
        problem = "can't be reached" if status is None else "names no model at /v1/models"
        raise ConfigError("url", "server", f"{problem}; give its root's URL, and --model if it has no list")

    async def wait_until_ready(self, timeout_s: float) -> None:
        """Return as soon as `/health` or `/v1/models` answers 200.

        Raises:
            ConfigError: neither does within `timeout_s`.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while True:
            for path in ("/health", "/v1/models"):
                status, _ = await self._exchange(path, None)
                if status == 200:
                    return
            if loop.time() >= end_s:
                raise ConfigError("url", "server", f"not ready within {timeout_s:g} s: no 200 from /health")
            await asyncio.sleep(0.2)

    async def tokenize(self, model: str, text: str, *, adds_special: bool) -> Sequence[int] | None:
        """The ids of a text, by vLLM's `/tokenize` or llama-server's; None where there is neither."""
        for question in (
            {"model": model, "prompt": text, "add_special_tokens": adds_special},
            {"content": text, "add_special": adds_special},
        ):
            answer = await self.ask("/tokenize", question)
            token_ids = answer.get("tokens") if isinstance(answer, dict) else None
            if isinstance(token_ids, list) and all(type(each) is int for each in token_ids):
                return token_ids
        return None

    async def detokenize(self, model: str, token_ids: Sequence[int]) -> str | None:
        """The text of ids, by the same two."""
        answer = await self.ask("/detokenize", {"model": model, "tokens": list(token_ids)})
        if not isinstance(answer, dict):
            return None
        text = answer.get("prompt", answer.get("content"))
        return text if isinstance(text, str) else None

    async def _exchange(self, path: str, question: object) -> tuple[int | None, bytes]:
        """(status, body); None for a status: no answer."""
        body = b"" if question is None else msgspec.json.encode(question)
        headers = {**self._headers, "accept": "application/json"}
        request = HttpRequest("GET" if question is None else "POST", path, headers, body)
        answer = _Answer()
        try:
            async with asyncio.timeout(FACT_TIMEOUT_S):
                await self._http.send(request, answer)
        except (TimeoutError, ConnectionFailedError, NotHttpError):
            return None, b""
        return answer.status, bytes(answer.content)
