"""ChunkWriter: the JSON of a stream's chunks around their choices, encoded once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ridgeline.engine.async_engine import Submission
from ridgeline.outputs import RequestOutput
from ridgeline.server.sampling_fields import SamplingFields
from ridgeline.server.usage import Usage

_encode = msgspec.json.Encoder().encode


class ChunkWriter:
    """Writes chunks with one head, and usage where it was asked for."""

    def __init__(
        self, head: dict[str, object], fields: SamplingFields, submissions: Sequence[Submission]
    ) -> None:
        options = fields.stream_options
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._has_usage = bool(options and options.include_usage)
        self._is_continuous = bool(self._has_usage and options and options.continuous_usage_stats)
        self.usage = Usage()
        for submission in submissions:
            self.usage.add_prompt(submission.request_id, len(submission.prompt.token_ids))

    def count(self, delta: RequestOutput) -> None:
        """Take a delta into the usage; before its chunks are written."""
        self.usage.add(delta)

    def chunk(self, choices: Sequence[dict[str, object]]) -> bytes:
        """One event with these choices."""
        return self._head + b",".join(map(_encode, choices)) + self._tail()

    def last_events(self) -> bytes:
        """The usage chunk, where it was asked for."""
        if not self._has_usage:
            return b""
        return self._head + b'],"usage":' + _encode(self.usage.document()) + b"}\n\n"

    def _tail(self) -> bytes:
        if self._is_continuous:
            return b'],"usage":' + _encode(self.usage.document()) + b"}\n\n"
        return b'],"usage":null}\n\n' if self._has_usage else b"]}\n\n"
