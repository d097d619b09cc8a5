"""Text that can't fit is told by its bytes: the bound holds for any text, and is there where it can be."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import ContextLengthError
from ridgeline.tokenizer.byte_level import MAX_NFC_SHRINK
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer

PIECES = st.sampled_from([*"the 12▁ab", "<think>", "<|im_end|>", "é", "e\u0301", "\u212a"])
TEXT = st.text() | st.lists(PIECES).map("".join)


def bound(tokenizer: Tokenizer, text: str) -> int | None:
    """Fewest tokens for which `check_fits` lets the text pass."""
    for max_num_tokens in range(1, 4 * len(text) + 2):
        try:
            tokenizer.check_fits(text, max_num_tokens)
        except ContextLengthError:
            continue
        return max_num_tokens
    return None


@given(TEXT)
def test_no_text_that_fits_is_refused(byte_level: Tokenizer, sentencepiece: Tokenizer, text: str) -> None:
    for tokenizer in (byte_level, sentencepiece):
        tokenizer.check_fits(text, max(1, len(tokenizer.encode(text))))


@given(TEXT)
def test_nor_where_text_is_normalised_first(make_byte_level, text: str) -> None:
    tokenizer = make_byte_level(pre="qwen2")
    tokenizer.check_fits(text, max(1, len(tokenizer.encode(text))))


def test_the_bound_is_that_of_the_longest_token(byte_level: Tokenizer, sentencepiece: Tokenizer) -> None:
    # <|endoftext|> has 13 bytes; <0x00> and the like are spelled with 6, the marks of spaces with 3 each.
    assert bound(byte_level, "x" * 1300) == 100
    assert bound(sentencepiece, "x" * 600) == 100


def test_the_error_tells_the_arithmetic(byte_level: Tokenizer) -> None:
    with pytest.raises(ContextLengthError, match=r"1300 bytes.*99 tokens.*more than 13 bytes") as caught:
        byte_level.check_fits("x" * 1300, 99)
    assert caught.value.field == "prompt"


def test_bytes_without_a_token_count_for_nothing(make_byte_level) -> None:
    lacking = make_byte_level(token_type=[3, 3, 3, 5, *[1] * 259, 4])
    assert lacking.encode("\0" * 1000) == []
    lacking.check_fits("\0" * 10_000 + "x" * 1300, 100)
    with pytest.raises(ContextLengthError):
        lacking.check_fits("\0" * 10_000 + "x" * 1301, 100)


def test_where_such_bytes_may_become_others_nothing_is_known(make_byte_level, make_sentencepiece) -> None:
    for tokenizer in (
        make_byte_level(pre="qwen2", token_type=[3, 3, 3, 5, *[1] * 259, 4]),
        make_sentencepiece(token_type=[2, 3, 3, 1, *[6] * 255, *[1] * 8]),
    ):
        tokenizer.check_fits("x" * 10_000, 1)


def test_nfc_shortens_by_no_more_than_is_said() -> None:
    """Each composed character, from the longest text that becomes it: its parts, each in its longest form."""
    longest: dict[str, int] = {}
    characters = [chr(i) for i in range(sys.maxunicode + 1) if not 0xD800 <= i < 0xE000]
    for character in characters:
        normal, size = unicodedata.normalize("NFC", character), len(character.encode())
        longest[normal] = max(longest.get(normal, 0), size)
    for character in characters:
        if unicodedata.normalize("NFC", character) != character:
            continue
        parts = unicodedata.normalize("NFD", character)
        size = sum(max(longest.get(part, 0), len(part.encode())) for part in parts)
        assert max(size, longest.get(character, 0)) <= MAX_NFC_SHRINK * len(character.encode()), character


@pytest.mark.golden
def test_the_real_vocabulary_has_a_bound(model_path) -> None:
    from ridgeline.formats.gguf import open_gguf
    from ridgeline.tokenizer.gguf_tokenizer import build_tokenizer

    tokenizer = build_tokenizer(open_gguf(model_path).metadata, path=model_path)
    with pytest.raises(ContextLengthError):
        tokenizer.check_fits("word " * 1_000_000, 8191)
