"""Detokenizer: token ids to text, one at a time, never a broken character."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.tokenizer.gguf_tokenizer import Tokenizer


class Detokenizer:
    """The text of a growing list of ids, as `Tokenizer.decode` makes it of the whole.

    Each call costs what its token costs, however long the text already is. A character whose bytes
    are spread over several tokens comes out with the last of them; control tokens that are skipped
    don't stand between those bytes, just as in the whole decode.

    A text that `continues_text` keeps the space its first token begins with, where the whole decode of a
    SentencePiece vocabulary would strip it: prompt and continuation join without a seam.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, continues_text: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strips_space = tokenizer.adds_space_prefix and not continues_text
        self.has_incomplete_character = False
        """Whether the tokens so far end inside a character, whose bytes are held back."""

    def push(self, token_id: int) -> str:
        """The characters that this token completes; often empty.

        Raises:
            RequestError: the id is outside the vocabulary.
        """
        token = self._tokenizer.token_bytes(token_id)
        if token_id in self._skipped:
            return ""
        if not self.has_incomplete_character:
            try:
                return self._stripped(token.decode())
            except UnicodeDecodeError:
                pass  # not the whole of a character: the slower decoder keeps its bytes
        text = self._utf8.decode(token)
        self.has_incomplete_character = bool(self._utf8.getstate()[0])
        return self._stripped(text)

    def finish(self) -> str:
        """What is left at the end: U+FFFD for an incomplete character, else nothing."""
        self.has_incomplete_character = False
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if not text or not self._strips_space:
            return text
        self._strips_space = False
        return text.removeprefix(" ")
