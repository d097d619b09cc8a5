"""Control tokens in text: finding them, and keeping those that a user typed from being found.

A chat template writes control tokens between the messages; a message may hold the same characters as
text. To tell them apart after rendering, every control token typed in a message is broken by a mark
inside it, and the marks are removed from the plain text between the template's own control tokens. The
marks are lone surrogates: no valid text can hold them, so nothing a user types looks like one, and
they are no white space, so that a template's trimming leaves them where they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cached_property

_BREAK = "\ud800"
"""Stands behind the first character of a control token that a message holds."""
_EDGE = "\ud801"
"""Stands where a message begins or ends inside what could become a control token with its neighbour."""

END_MARK = "\ud802"
"""Stands behind the last message where the model goes on with that message."""


class SpecialTokens:
    """Splits text at control tokens (the leftmost, then the longest, as HF's tokenizers do).

    `control` maps the text of each control token to its id. `user_defined` tokens are text like any
    other, but a control token inside a longer one is not found.
    """

    def __init__(self, control: Mapping[str, int], user_defined: Collection[str] = ()) -> None:
        self._control = {text: token_id for text, token_id in control.items() if text}
        by_length = sorted({*self._control, *filter(None, user_defined)}, key=len, reverse=True)
        # A token of one character can't be broken inside, so its mark stands behind it.
        self._any = re.compile(
            "|".join(re.escape(text) + (f"(?!{_BREAK})" if len(text) == 1 else "") for text in by_length)
        )
        self._control_start = re.compile(self._starts())

    def split(self, text: str) -> list[str | int]:
        """Plain pieces and the ids of control tokens, in order; no piece is empty."""
        if not self._control:
            return [text] if text else []
        parts: list[str | int] = []
        start = 0
        for match in self._any.finditer(text):
            token_id = self._control.get(match.group())
            if token_id is None:
                continue
            if match.start() > start:
                parts.append(text[start : match.start()])
            parts.append(token_id)
            start = match.end()
        if start < len(text):
            parts.append(text[start:])
        return parts

    def protect(self, text: str) -> str:
        """`text` with marks, so that `split` finds no control token that lies in it even in part.

        This holds whatever protected text is put before or behind it, trimmed or not. Text that holds
        nothing like a control token comes back as it is.
        """
        marked = self._control_start.sub(lambda match: match.group() + _BREAK, text)
        core = text.strip()
        lengths = range(1, min(self._max_length, len(core) + 1))
        if any(core[:length] in self._tails for length in lengths):
            inner = marked.lstrip()
            marked = f"{marked[: len(marked) - len(inner)]}{_EDGE}{inner}"
        if any(core[-length:] in self._heads for length in lengths):
            inner = marked.rstrip()
            marked = f"{inner}{_EDGE}{marked[len(inner) :]}"
        return marked

    def _starts(self) -> str:
        """A pattern for the first character of a control token that stands there whole.

        It begins with that very character: the search then runs from one to the next, not over all text.
        """
        rests: dict[str, list[str]] = {}
        for text in self._control:
            rests.setdefault(text[0], []).append(re.escape(text[1:]))
        return "|".join(f"{re.escape(first)}(?={'|'.join(each)})" for first, each in rests.items()) or "(?!)"

    @cached_property
    def _max_length(self) -> int:
        return max(map(len, self._control), default=0)

    @cached_property
    def _heads(self) -> frozenset[str]:
        return frozenset(text[:end] for text in self._control for end in range(1, len(text)))

    @cached_property
    def _tails(self) -> frozenset[str]:
        return frozenset(text[start:] for text in self._control for start in range(1, len(text)))


def without_marks(text: str) -> str:
    """`text` as its writer meant it: all marks removed."""
    return text.replace(_BREAK, "").replace(_EDGE, "").replace(END_MARK, "")
