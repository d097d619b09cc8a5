"""TextBound: how long a text may be that so many tokens can stand for."""

from __future__ import annotations

from typing import NamedTuple


class TextBound(NamedTuple):
    """One token stands for at most `max_token_bytes` of UTF-8, beside `silent_bytes`, which have no token.

    (Some vocabularies lack bytes that their training never saw; they leave no trace in the ids.)
    """

    max_token_bytes: int
    silent_bytes: bytes = b""

    def num_bytes(self, text: str) -> int:
        """Bytes that tokens must stand for."""
        return len(text.encode(errors="surrogatepass").translate(None, self.silent_bytes))
