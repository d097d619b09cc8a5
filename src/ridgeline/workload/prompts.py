"""Prompts of exact lengths in tokens, as ids or as text that encodes to that many."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Protocol

from ridgeline.errors import ConfigError

# Without a tokenizer: ids that every vocabulary has, beyond bytes and control tokens, and whole short words.
UNKNOWN_VOCABULARY_IDS = range(1000, 10_000)
_SHORT_WORDS = ("the", "of", "and", "to", "in", "is", "it", "for", "on", "with", "as", "at", "by", "from")
_MAX_CORRECTIONS = 30


class Codec(Protocol):
    """A tokenizer, here or behind a server's `/tokenize`."""

    @property
    def num_added_tokens(self) -> int:
        """Tokens that the server puts before every text prompt (a BOS)."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without any that are added."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids."""


def word_ids(codec: Codec | None) -> Sequence[int]:
    """Ids to draw prompts from: those that ordinary text encodes to, so no control token is among them."""
    if codec is None:
        return UNKNOWN_VOCABULARY_IDS
    syllables = ("".join(letters) for letters in product("bcdfghlmnprstvw", "aeiou", "dlmnrst"))
    ids = sorted(set(codec.encode(" ".join(["", *syllables, *_SHORT_WORDS]))))
    if len(ids) < 2:
        raise ConfigError("tokenizer", len(ids), "encodes ordinary words to less than two distinct ids")
    return ids


class PromptMaker:
    """Draws prompts: token ids when `codec` is None or `as_text` False, else text of the exact length.

    Text without a codec is as many short words as tokens were asked for, and only about that long.
    """

    def __init__(self, codec: Codec | None, rng: Random, *, as_text: bool) -> None:
        self._codec = codec
        self._rng = rng
        self._as_text = as_text
        self._ids = word_ids(codec) if codec is not None or not as_text else ()

    @property
    def is_exact(self) -> bool:
        """Lengths are those asked for."""
        return self._codec is not None or not self._as_text

    def draw(self, num_tokens: int, rng: Random | None = None) -> list[int]:
        """`num_tokens` ids, by `rng` where given."""
        return (rng or self._rng).choices(self._ids, k=num_tokens)

    def prompt(self, num_tokens: int, *, after: str | Sequence[int] = ()) -> str | list[int]:
        """A prompt of `num_tokens` in all that begins with the prompt `after`.

        Raises:
            ConfigError: no text of that length was found.
        """
        if not self._as_text:
            assert not isinstance(after, str)
            return [*after, *self.draw(num_tokens - len(after))]
        beginning = after if isinstance(after, str) else ""
        if self._codec is None:
            num_words = max(num_tokens - len(beginning.split()), 0)
            return " ".join([*beginning.split(), *self._rng.choices(_SHORT_WORDS, k=num_words)])
        return self._exact_text(num_tokens - self._codec.num_added_tokens, beginning)

    def _exact_text(self, num_tokens: int, beginning: str) -> str:
        """Decode, encode, correct the end until the length is right."""
        assert self._codec is not None
        held = len(self._codec.encode(beginning)) if beginning else 0
        tail = self.draw(max(num_tokens - held, 0))
        for _ in range(_MAX_CORRECTIONS):
            text = beginning + self._codec.decode(tail)
            surplus = len(self._codec.encode(text)) - num_tokens
            if surplus == 0:
                return text
            kept = tail if surplus < 0 else tail[: max(len(tail) - surplus, 0)]
            tail = kept + self.draw(max(-surplus, 0))
            if surplus > 0 and kept:
                tail[-1] = self.draw(1)[0]  # another end: the same one could come out too long for ever
        raise ConfigError(
            "random_input_len",
            num_tokens,
            "no text of that many tokens was found; try --prompts-as ids",
        )
