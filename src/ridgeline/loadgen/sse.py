"""Server-sent events, byte by byte: what arrives in a response body becomes the payloads of its events.

Source: WHATWG HTML Living Standard, §9.2.6 "Interpreting an event stream".
"""

from __future__ import annotations

MAX_EVENT_BYTES = 1 << 24

_BOM = b"\xef\xbb\xbf"


class OversizeEventError(Exception):
    """An event longer than the reader takes; `limit_bytes` says how much that is."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(f"an event of more than {limit_bytes:,} bytes")


class SseReader:
    """Takes pieces of a stream cut anywhere, also inside a character or a line end.

    Lines end in LF, CR or CRLF. Comments and all fields but `data` are dropped; several `data` lines of an
    event are joined with LF. Unlike the standard, an event that the end of the stream cuts short before its
    empty line still counts: servers that close after the last line mean it.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._pieces: list[bytes] = []  # of a line that has no end yet
        self._data: list[bytes] = []  # of an event that has no empty line yet
        self._num_held_bytes = 0
        self._after_cr = False
        self._at_start = True

    def feed(self, piece: bytes) -> list[bytes]:
        """The payloads of the events that `piece` completes.

        Raises:
            OversizeEventError: an event outgrows the limit.
        """
        if not piece:
            return []
        if self._after_cr and piece[:1] == b"\n":
            piece = piece[1:]
        self._after_cr = piece[-1:] == b"\r" if piece else False
        events: list[bytes] = []
        for line in piece.splitlines(keepends=True):
            self._hold(len(line))
            if line[-1:] not in (b"\n", b"\r"):
                self._pieces.append(line)
                continue
            whole = b"".join([*self._pieces, line]).rstrip(b"\r\n")
            self._pieces.clear()
            self._take_line(whole, events)
        return events

    def close(self) -> list[bytes]:
        """The payload of what the end of the stream cuts short, if it is an event."""
        events: list[bytes] = []
        if self._pieces:
            self._take_line(b"".join(self._pieces), events)
            self._pieces.clear()
        self._take_line(b"", events)
        return events

    def _hold(self, num_bytes: int) -> None:
        self._num_held_bytes += num_bytes
        if self._num_held_bytes > self._max_event_bytes:
            raise OversizeEventError(self._max_event_bytes)

    def _take_line(self, line: bytes, events: list[bytes]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
            self._num_held_bytes = 0
        elif line[:5] == b"data:":
            value = line[5:]
            self._data.append(value[1:] if value[:1] == b" " else value)
        elif line == b"data":
            self._data.append(b"")
        elif not self._data:
            self._num_held_bytes = 0  # endless comments keep a connection alive and are no event
