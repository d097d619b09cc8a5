"""What a text, or its beginning, says in a tool format: content and calls.

A pure function of the text, and monotone: what a beginning says is a beginning of what the whole says. A
call is certain once its name is that of a tool and its arguments begin; text that might become one is held.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field

from ridgeline.tools.formats import ToolFormat

_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(r"[^\s,}\]]*(?=[\s,}\]])")
_SPACE = re.compile(r"\s*")
_FIRST_KEY = re.compile(r'\{\s*(?:"([^"]*)"|[^\s"])')


@dataclass(slots=True)
class ReadCall:
    """One call; `arguments` is their text as far as it is known."""

    name: str
    arguments: str


@dataclass(slots=True)
class Reading:
    """Content and calls, each in order."""

    content: str = ""
    calls: list[ReadCall] = field(default_factory=list)


@dataclass(slots=True)
class _Block:
    """Calls that stand together. `end` is where they end, None while more may belong to them."""

    calls: list[ReadCall]
    end: int | None


class TextReader:
    """Reads texts in one format; only objects that name one of `tool_names` are calls."""

    def __init__(self, tool_format: ToolFormat, tool_names: Collection[str]) -> None:
        self._format = tool_format
        self._names = frozenset(tool_names)
        keys = "|".join(tool_format.argument_keys)
        self._header = re.compile(rf'\{{\s*"name"\s*:\s*("[^"\\]*")\s*,\s*"(?:{keys})"\s*:\s*(?=\S)')
        self._keys = {"name", "id", "type", *tool_format.argument_keys}

    def read(self, text: str, *, is_over: bool) -> Reading:
        """What `text` says, all of it if `is_over`, as much as is certain otherwise."""
        reading = self._read_marked(text, is_over) if self._format.opening else self._read_bare(text, is_over)
        if not is_over or reading.calls:
            reading.content = reading.content.rstrip()
        return reading

    def _read_marked(self, text: str, is_over: bool) -> Reading:
        opening, reading, position = self._format.opening, Reading(), 0
        while True:
            start = text.find(opening, position)
            if start < 0:
                held = 0 if is_over else _overlap(text[position:], opening)
                _add_content(reading, text[position : len(text) - held])
                return reading
            body = start + len(opening)
            block = self._read_block(text, body, is_over)
            if block is None:
                _add_content(reading, text[position:body])
                position = body
                continue
            _add_content(reading, text[position:start])
            reading.calls += block.calls
            if block.end is None:
                return reading
            position = block.end

    def _read_bare(self, text: str, is_over: bool) -> Reading:
        lead = text.lstrip()
        start = len(text) - len(lead)
        if not is_over and (not lead or any(p.startswith(lead) for p in self._format.prefixes)):
            return Reading()
        prefix = next((p for p in self._format.prefixes if lead.startswith(p)), "")
        block = self._read_block(text, start + len(prefix), is_over)
        if block is None:
            return Reading(text)
        reading = Reading("", block.calls)
        if block.end is not None:
            rest = text[block.end :].lstrip()
            fence = "```" if prefix.startswith("```") else ""
            if is_over or not fence.startswith(rest):
                _add_content(reading, rest.removeprefix(fence))
        return reading

    def _read_block(self, text: str, start: int, is_over: bool) -> _Block | None:
        """The calls that begin at `start`; None when it is no call that begins there."""
        position, calls, closing = _skip(text, start), list[ReadCall](), self._format.closing
        is_list = text.startswith("[", position)
        position = end = _skip(text, position + is_list)
        while True:
            if position == len(text):
                return None if is_over and not calls else _Block(calls, None)
            call = self._read_call(text, position, is_over)
            if call is None:
                return _Block(calls, end) if calls else None
            calls += call.calls
            if call.end is None:
                return _Block(calls, None)
            end = position = call.end
            position = _skip(text, position)
            if position < len(text) and text[position] in ",;":
                position = _skip(text, position + 1)
            elif position < len(text) and text[position] != "{":
                break
        if is_list and text[position] == "]":
            end = position = position + 1
        position = _skip(text, position)
        if not is_over and closing.startswith(text[position:]) and len(text) - position < len(closing):
            return _Block(calls, None)
        has_closing = bool(closing) and text.startswith(closing, position)
        return _Block(calls, position + len(closing) if has_closing else end)

    def _read_call(self, text: str, start: int, is_over: bool) -> _Block | None:
        """One call; none inside while it is not certain; None when it is no call."""
        header = self._header.match(text, start)
        if header is None:
            return self._read_odd_call(text, start, is_over)
        name = json.loads(header.group(1))
        if name not in self._names:
            return None
        first = header.end()
        end = _value_end(text, first)
        if end is not None:
            call = ReadCall(name, _arguments(text[first:end]))
            return _Block([call], _call_end(text, end, is_over))
        # Of text and numbers nothing is passed on before all is known: they are not the arguments as such.
        is_object = text[first] in "{["
        return _Block([ReadCall(name, text[first:] if is_object or is_over else "")], None)

    def _read_odd_call(self, text: str, start: int, is_over: bool) -> _Block | None:
        """A call without arguments, or with its keys in another order: known when it ends."""
        first_key = _FIRST_KEY.match(text, start)
        if text[start] != "{" or (first_key is not None and first_key.group(1) not in self._keys):
            return None
        end = _value_end(text, start)
        if end is None:
            return None if is_over else _Block([], None)
        try:
            whole = json.loads(text[start:end])
        except (ValueError, RecursionError):
            return None
        if not isinstance(whole.get("name"), str) or whole["name"] not in self._names:
            return None
        given = next((whole[key] for key in self._format.argument_keys if key in whole), None)
        spelled = json.dumps(given, ensure_ascii=False)
        return _Block([ReadCall(whole["name"], _arguments(spelled))], end)


def _arguments(value: str) -> str:
    """The arguments' text: an object as it is spelled, an object inside a string, nothing as `{}`."""
    if value == "null":
        return "{}"
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value, strict=False)) or "{}"
    except ValueError:
        return value


def _call_end(text: str, position: int, is_over: bool) -> int | None:
    """Where a call ends whose arguments end at `position`: behind its brace, after other keys perhaps.

    At `position` itself where no such end follows: what stands there is no part of the call. None while it
    may still come.
    """
    undecided = position if is_over else None
    following = text[position:].lstrip()
    if not following:
        return undecided
    if following[0] == "}":
        return len(text) - len(following) + 1
    next_key = following[1:].lstrip()[:1] if following[0] == "," else "none"
    if next_key not in ("", '"'):
        return position
    # With a brace for what stands before, the rest of the call is a value of its own.
    rest = '{"": 0' + text[position:]
    end = _value_end(rest, 0)
    if end is None:
        return undecided
    try:
        json.loads(rest[:end])
    except (ValueError, RecursionError):
        return position
    return end - len(rest) + len(text)


def _value_end(text: str, start: int) -> int | None:
    """Where the JSON value that begins at `start` ends, None when it goes on; only brackets are checked."""
    if text[start] not in '"{[':
        scalar = _SCALAR.match(text, start)
        return scalar.end() if scalar is not None else None
    depth, position = 0, start
    while (match := _STRUCTURE.search(text, position)) is not None:
        if match.group() == '"':
            string = _STRING.match(text, match.start())
            if string is None:
                return None
            position = string.end()
        else:
            depth += 1 if match.group() in "{[" else -1
            position = match.end()
        if depth == 0:
            return position
    return None


def _add_content(reading: Reading, text: str) -> None:
    """Space around calls is theirs, not content."""
    if reading.calls and not reading.content.strip():
        text = text.lstrip()
    reading.content = reading.content + text


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match is not None else position


def _overlap(text: str, marker: str) -> int:
    """Characters at the end of `text` that may be the beginning of `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if marker.startswith(text[-n:])), 0)
