"""Byte-level BPE (`tokenizer.ggml.model` = gpt2): every text has ids, every id has bytes.

Tokens are spelled in GPT-2's byte alphabet: one printable character for each of the 256 byte values.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import tokenizers
from tokenizers import models

from ridgeline.errors import ModelFileError
from ridgeline.tokenizer.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from ridgeline.tokenizer.text_bound import TextBound
from ridgeline.tokenizer.vocabulary import TokenType, Vocabulary


def _byte_alphabet() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_ALPHABET: Mapping[str, int] = MappingProxyType(_byte_alphabet())
"""Character in a token → byte it stands for."""


MAX_NFC_SHRINK = 4
"""NFC makes no text shorter by a larger factor, in UTF-8: the worst are some Greek letters, 7 to 2."""
_BYTES_OF_UTF8 = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}


def find_pre_tokenizer(vocabulary: Vocabulary) -> PreTokenizer:
    """The row for the file's `tokenizer.ggml.pre`.

    Raises:
        ModelFileError: no such row; names the known ones.
    """
    pre_tokenizer = PRE_TOKENIZERS.get(vocabulary.pre)
    if pre_tokenizer is None:
        problem = f"pre-tokenizer {vocabulary.pre!r} (tokenizer.ggml.pre) is not supported"
        raise ModelFileError(
            vocabulary.path, problem, f"use a model with one of: {', '.join(PRE_TOKENIZERS)}"
        )
    return pre_tokenizer


def build_byte_level(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The tokenizer for text without control tokens.

    Raises:
        ModelFileError: the pre-tokeniser is unknown.
    """
    pre_tokenizer = find_pre_tokenizer(vocabulary)
    # Control and unused tokens stand for no text; left in, a word could equal one.
    hidden = {TokenType.CONTROL, TokenType.UNUSED}
    kinds = vocabulary.token_types
    ids = {token: i for i, token in enumerate(vocabulary.tokens) if kinds[i] not in hidden}
    merges = [
        (left, right)
        for left, right in vocabulary.merges
        if left in ids and right in ids and left + right in ids
    ]
    model = models.BPE(ids, merges, ignore_merges=pre_tokenizer.ignores_merges)
    tokenizer = tokenizers.Tokenizer(model)
    normalizer = pre_tokenizer.build_normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer.build()
    return tokenizer


def byte_level_bytes(token: str, token_type: int) -> bytes:
    """The bytes a token stands for; control and user-defined tokens are spelled as plain text."""
    if token_type in (TokenType.CONTROL, TokenType.USER_DEFINED):
        return token.encode()
    try:
        return bytes(map(BYTE_ALPHABET.__getitem__, token))
    except KeyError:  # not in the alphabet at all: a token outside the merges, spelled as plain text
        return token.encode()


def byte_level_bound(vocabulary: Vocabulary) -> TextBound | None:
    """How much text one token can stand for; None where text is changed first and bytes lack tokens."""
    kinds = vocabulary.token_types
    spelled = [byte_level_bytes(token, kind) for token, kind in zip(vocabulary.tokens, kinds, strict=True)]
    hidden = {TokenType.CONTROL, TokenType.UNUSED}
    told = {
        each[0] for each, kind in zip(spelled, kinds, strict=True) if len(each) == 1 and kind not in hidden
    }
    silent = bytes(sorted(_BYTES_OF_UTF8 - told))
    longest = max(map(len, spelled))
    if not find_pre_tokenizer(vocabulary).is_nfc:
        return TextBound(longest, silent)
    return TextBound(longest * MAX_NFC_SHRINK) if not silent else None
