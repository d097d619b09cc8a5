"""ToolCallParser: a model's text, as it arrives, becomes content and tool calls."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ridgeline.tools.formats import ToolFormat
from ridgeline.tools.reading import Reading, TextReader


@dataclass(slots=True)
class CallDelta:
    """More of one call: `name` comes once, first; `arguments` is a piece of their text."""

    index: int
    name: str | None
    arguments: str


@dataclass(slots=True)
class ParsedDelta:
    """What became certain."""

    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)


class ToolCallParser:
    """Reads one completion in one format; only calls of `tool_names` are calls.

    What the deltas join to depends on the whole text only, never on how it was cut into pieces. What is
    malformed comes out as content; a call that is cut by the end stays as it is.
    """

    def __init__(self, tool_format: ToolFormat, tool_names: Collection[str]) -> None:
        self._reader = TextReader(tool_format, tool_names)
        self._text = ""
        self._told = Reading()

    @property
    def num_calls(self) -> int:
        """Calls begun so far."""
        return len(self._told.calls)

    def push(self, text: str) -> ParsedDelta:
        """Take more of the completion; what it makes certain."""
        self._text += text
        return self._news(self._reader.read(self._text, is_over=False))

    def finish(self) -> ParsedDelta:
        """The completion is over: what was held back."""
        return self._news(self._reader.read(self._text, is_over=True))

    def _news(self, reading: Reading) -> ParsedDelta:
        told, self._told = self._told, reading
        assert reading.content.startswith(told.content), "content was taken back"
        delta = ParsedDelta(reading.content[len(told.content) :])
        for index, call in enumerate(reading.calls):
            if index >= len(told.calls):
                delta.calls.append(CallDelta(index, call.name, call.arguments))
            elif len(call.arguments) > len(told.calls[index].arguments):
                more = call.arguments[len(told.calls[index].arguments) :]
                delta.calls.append(CallDelta(index, None, more))
        return delta
