"""One streamed answer: what arrives becomes chunks, counts, text and an outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ridgeline.loadgen.sse import OversizeEventError, SseReader
from ridgeline.metrics.client_record import Outcome
from ridgeline.metrics.durations import Chunk

GOOD_FINISHES = ("stop", "length", "tool_calls")
_MAX_ERROR_BYTES = 1 << 16
_MAX_TOKENS_PER_EVENT = 4096
"""An event may count so many tokens, or as many as it has bytes: more is no count of what it carries."""
_PAYLOADS = ("content", "reasoning", "reasoning_content", "tool_calls", "function_call", "refusal")


class AnswerStream:
    """The sink of one request's answer; every way to fail ends in `outcome` and `error`, never in a raise.

    `is_chat` chooses between deltas and texts. A chunk carries tokens by the rule of docs/load-generator.md:
    a payload, even an empty one without a role; with per-chunk usage, whatever usage says.
    """

    def __init__(self, *, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._reader = SseReader()
        self._status = 0
        self.is_event_stream = False
        self._plain = bytearray()
        self._texts: list[str] = []
        self._num_known_tokens = self._num_event_bytes = 0
        self._empty_finish_at_s: float | None = None
        self.chunks: list[Chunk] = []
        self.has_chunk_tokens = False
        self.empty_at_s: list[float] = []
        self.last_event_at_s: float | None = None
        self.usage: Mapping[str, Any] = {}
        self.finish_reason: str | None = None
        self.is_done = False
        self.outcome: Outcome | None = None
        self.error: str | None = None

    @property
    def text(self) -> str:
        """All text so far: content, reasoning, tool calls as JSON."""
        return "".join(self._texts)

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Decide by status, content type and encoding whether a stream comes."""
        self._status = status
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        encoding = headers.get("content-encoding", "identity").strip().lower()
        self.is_event_stream = status == 200 and kind == "text/event-stream" and encoding == "identity"
        if status != 200:
            outcome = Outcome.REJECTED if status in (429, 503) else Outcome.HTTP_ERROR
            place = f" to {headers['location']}" if 300 <= status < 400 and "location" in headers else ""
            self._fail(outcome, f"HTTP {status}{place}")
        elif kind != "text/event-stream":
            self._fail(Outcome.MALFORMED_STREAM, f"content type {kind or 'absent'}, not text/event-stream")
        elif not self.is_event_stream:
            self._fail(Outcome.MALFORMED_STREAM, f"content encoding {encoding}, which was not asked for")

    def body(self, piece: bytes, at_s: float) -> bool:
        """Take a piece; True after `[DONE]` or a failure."""
        if not self.is_event_stream:
            self._plain += piece[: _MAX_ERROR_BYTES - len(self._plain)]
            return len(self._plain) >= _MAX_ERROR_BYTES
        try:
            events = self._reader.feed(piece)
        except OversizeEventError as error:
            self._fail(Outcome.MALFORMED_STREAM, str(error))
            return True
        for event in events:
            self._take_event(event, at_s)
            if self.outcome is not None or self.is_done:
                return True
        return False

    def end(self, at_s: float, broken: str | None = None) -> None:
        """The answer is over at `at_s`; `broken` says how, when it did not end in order."""
        if self.is_event_stream and self.outcome is None and not self.is_done:
            for event in self._reader.close():
                if broken is None or event.strip() == b"[DONE]":
                    self._take_event(event, at_s)
        if self.outcome is None:
            self._conclude(broken)
        elif self._plain:
            self.error = printable(f"{self.error}: {_error_text(bytes(self._plain))}")
        self._settle_empty_finish()

    def _conclude(self, broken: str | None) -> None:
        if broken is not None and not self.is_done:
            where = f"after {len(self.chunks)} chunks" if self.last_event_at_s else "before the first event"
            self._fail(Outcome.TRUNCATED, f"{broken} {where}")
        elif self.finish_reason is None:
            reason = "no finish reason" if self.last_event_at_s else "an empty stream"
            self._fail(Outcome.TRUNCATED, reason)
        elif self.finish_reason == "timeout":
            self._fail(Outcome.TIMEOUT, "finish reason timeout")
        elif self.finish_reason not in GOOD_FINISHES:
            self._fail(Outcome.HTTP_ERROR, f"finish reason {self.finish_reason}")
        else:
            self.outcome = Outcome.OK

    def _settle_empty_finish(self) -> None:
        """A finish chunk without text carried the end token if usage counts one more than came."""
        count = self.usage.get("completion_tokens")
        if self._empty_finish_at_s is None:
            return
        is_token = not self.has_chunk_tokens and count == len(self.chunks) + 1
        if is_token and not self._is_before_last(self._empty_finish_at_s):
            self.chunks.append(Chunk(self._empty_finish_at_s, 1))
        else:
            self.empty_at_s.append(self._empty_finish_at_s)

    def _is_before_last(self, at_s: float) -> bool:
        return bool(self.chunks) and at_s < self.chunks[-1].at_s

    def _fail(self, outcome: Outcome, error: str) -> None:
        self.outcome, self.error = outcome, printable(error)

    def _take_event(self, event: bytes, at_s: float) -> None:
        self.last_event_at_s = at_s
        if event.strip() == b"[DONE]":
            self.is_done = True
            return
        try:
            document = msgspec.json.decode(event)
            self._num_event_bytes = len(event)
            self._take_document(document, at_s)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            shown = event[:60].decode("utf-8", "replace")
            self._fail(Outcome.MALFORMED_STREAM, f"event {shown!r} is no chunk of an answer: {error}")

    def _take_document(self, document: dict[str, Any], at_s: float) -> None:
        if document.get("error") is not None:
            self._take_error(document["error"])
            return
        usage = document.get("usage")
        if usage is not None:
            self.usage = {**usage}
            if not isinstance(usage.get("completion_tokens"), int):
                raise TypeError("usage without a whole number of completion_tokens")
        choices = document.get("choices")
        if not isinstance(choices, list):
            raise TypeError("no list of choices")
        for choice in choices:
            self._take_choice(choice, usage, at_s)

    def _take_error(self, error: object) -> None:
        code = error.get("code") if isinstance(error, dict) else None
        outcome = Outcome.REJECTED if code in (429, 503) else Outcome.HTTP_ERROR
        self._fail(outcome, f"an error in the stream: {_message(error)}")

    def _take_choice(self, choice: dict[str, Any], usage: dict[str, Any] | None, at_s: float) -> None:
        has_payload, text, is_opening = _delta(choice) if self._is_chat else _text(choice)
        finish_reason = choice.get("finish_reason")
        if finish_reason is not None:
            self.finish_reason = str(finish_reason)
        self._texts.append(text)
        if usage is not None and (self.has_chunk_tokens or not self.chunks):
            self._take_counted(usage["completion_tokens"], at_s)
        elif has_payload and (text or finish_reason is None) and not (is_opening and not text):
            self.chunks.append(Chunk(at_s, 1))
        elif finish_reason is not None:
            self._empty_finish_at_s = at_s
        else:
            self.empty_at_s.append(at_s)

    def _take_counted(self, num_tokens: int, at_s: float) -> None:
        new = num_tokens - self._num_known_tokens
        if new > max(self._num_event_bytes, _MAX_TOKENS_PER_EVENT):
            raise ValueError(f"usage counts {new:,} tokens in an event of {self._num_event_bytes:,} bytes")
        if new > 0:
            self.has_chunk_tokens = True
            self.chunks.append(Chunk(at_s, new))
            self._num_known_tokens = num_tokens
        else:
            self.empty_at_s.append(at_s)


def _text(choice: dict[str, Any]) -> tuple[bool, str, bool]:
    """(is there a payload, its text, is it the opening one) of a completion's choice."""
    text = choice.get("text")
    return text is not None, _as_text(text), False


def _delta(choice: dict[str, Any]) -> tuple[bool, str, bool]:
    """The same of a chat's choice."""
    delta = choice.get("delta")
    if delta is None:
        return False, "", False
    payloads = [delta[name] for name in _PAYLOADS if delta.get(name) is not None]
    parts = [_as_text(payload) for payload in payloads]
    return bool(payloads), "".join(parts), "role" in delta


def _as_text(payload: object) -> str:
    if payload is None:
        return ""
    return payload if isinstance(payload, str) else msgspec.json.encode(payload).decode()


def printable(text: str) -> str:
    """The text with a replacement character for what would steer a terminal or can't be written."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _error_text(body: bytes) -> str:
    try:
        document = msgspec.json.decode(body)
    except ValueError:
        return " ".join(body.decode("utf-8", "replace").split())[:200]
    return _message(document.get("error", document) if isinstance(document, dict) else document)


def _message(error: object) -> str:
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:300]
