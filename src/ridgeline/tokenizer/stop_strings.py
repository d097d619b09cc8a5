"""StopStringMatcher: finds stop strings in text that arrives in pieces (C05 of the shared cases)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """What one piece of text led to: text that may be shown now, and the stop string that was found."""

    text_to_emit: str
    matched: str | None


class StopStringMatcher:
    """Holds back what may be the beginning of a stop string and finds where the text ends.

    The decision falls with the piece that completes a stop string: of all matches complete by then, the
    earliest wins, then the longest. Held back is the longest end of the text that begins a stop string.
    A piece of length n costs O(n) for each stop string, whatever came before and however long the
    strings are (Knuth, Morris and Pratt's automaton).
    """

    def __init__(self, stop: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        self._automata = [_Automaton(text) for text in stop]
        self._includes_stop = include_stop_str_in_output
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> StopMatch:
        """Take a piece of text; after a match nothing more is emitted."""
        if self._matched is not None:
            return StopMatch("", self._matched)
        if not self._automata:
            return StopMatch(text, None)
        best: tuple[int, int] | None = None
        for automaton in self._automata:
            end = automaton.push(text)
            if end is not None:
                length = len(automaton.text)
                best = min(filter(None, (best, (end - length, -length))))
        window = self._held + text
        if best is not None:
            return self._stop_at(window, start=len(self._held) + best[0], length=-best[1])
        num_held = max(automaton.num_matched for automaton in self._automata)
        self._held = window[len(window) - num_held :]
        return StopMatch(window[: len(window) - num_held], None)

    def finish(self) -> str:
        """The text still held back, when generation ended without a match."""
        held, self._held = self._held, ""
        return held

    def _stop_at(self, window: str, *, start: int, length: int) -> StopMatch:
        self._held = ""
        self._matched = window[start : start + length]
        end = start + length if self._includes_stop else start
        return StopMatch(window[:end], self._matched)


class _Automaton:
    """Progress of one stop string: `num_matched` of its characters end the text so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_matched = 0
        self._fallback = _fallbacks(text)

    def push(self, piece: str) -> int | None:
        """Index in `piece` behind the first full match, or None."""
        text, matched = self.text, self.num_matched
        if not matched and text[0] not in piece:
            return None
        for i, character in enumerate(piece):
            while matched and text[matched] != character:
                matched = self._fallback[matched - 1]
            if text[matched] == character:
                matched += 1
            if matched == len(text):
                return i + 1
        self.num_matched = matched
        return None


def _fallbacks(text: str) -> list[int]:
    """For each beginning of `text`: length of its longest proper end that is a beginning too."""
    fallbacks = [0] * len(text)
    matched = 0
    for i in range(1, len(text)):
        while matched and text[matched] != text[i]:
            matched = fallbacks[matched - 1]
        if text[matched] == text[i]:
            matched += 1
        fallbacks[i] = matched
    return fallbacks
