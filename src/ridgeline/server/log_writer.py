"""What the server logs: lines as text or JSON, written by a thread so that nobody waits for the terminal."""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
from datetime import UTC, datetime
from typing import TextIO

MAX_QUEUED_LINES = 10_000
FLUSH_TIMEOUT_S = 2.0
_LEVELS = {
    "ridgeline": logging.INFO,
    "uvicorn": logging.ERROR,
    "asyncio": logging.WARNING,
    "opentelemetry": logging.ERROR,
}


class LineFormatter(logging.Formatter):
    """One line a record: time, level and message, then the record's `fields` (a dict) by name.

    `log_format` is `json`, or `text`: `key=value`, quoted where a value has more than plain characters, so
    that nothing a client sends can begin a new line or look like another field.
    """

    def __init__(self, log_format: str) -> None:
        super().__init__()
        self._is_json = log_format == "json"

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        level, message = record.levelname.lower(), record.getMessage()
        if self._is_json:
            return json.dumps({"time": at, "level": level, "message": message, **fields}, default=str)
        pairs = [f"{name}={_plain(value)}" for name, value in fields.items() if value is not None]
        return " ".join([at, level, _one_line(message), *pairs])


class LogWriter(logging.Handler):
    """Hands lines to a thread that writes them; drops and counts them where the reader does not keep up."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.num_dropped = 0
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_QUEUED_LINES)
        self._thread = threading.Thread(target=self._write, name="ridgeline-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line."""
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self.num_dropped += 1

    def close(self) -> None:
        """Write what is queued, for at most two seconds."""
        try:
            self._lines.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(FLUSH_TIMEOUT_S)
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):
                self.num_dropped += 1


def log_to_stderr(log_format: str) -> LogWriter:
    """Send our messages, and what libraries complain of, to stderr through one writer."""
    writer = LogWriter(sys.stderr, LineFormatter(log_format))
    for name, level in _LEVELS.items():
        logger = logging.getLogger(name)
        logger.handlers = [writer]
        logger.propagate = False
        logger.setLevel(level)
    return writer


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if text and all(c.isascii() and (c.isalnum() or c in "._:/+=@-,{}*") for c in text):
        return text
    return json.dumps(text)


def _one_line(text: str) -> str:
    return " ".join(text.split())
