"""SentencePiece's BPE (`tokenizer.ggml.model` = llama): pieces merged by score, bytes as a fallback.

The file holds no merges. A pair may merge when the joined text is a piece, and the piece with the
highest score goes first, so listing all such pairs by score gives merges with the same effect.
"""

from __future__ import annotations

import tokenizers
from tokenizers import models, normalizers

from ridgeline.tokenizer.text_bound import TextBound
from ridgeline.tokenizer.vocabulary import SPACE_MARK, TokenType, Vocabulary


def build_sentencepiece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """The tokenizer for text without control tokens.

    Every stretch of text between control tokens gets the space prefix (if the file has one), as in
    llama.cpp and in HF's converted tokenizers.
    """
    hidden = {TokenType.CONTROL, TokenType.UNUSED}
    kinds = vocabulary.token_types
    unknown = vocabulary.unknown_token_id
    ids = {token: i for i, token in enumerate(vocabulary.tokens) if kinds[i] not in hidden or i == unknown}
    model = models.BPE(
        ids,
        merges_by_score(vocabulary),
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = tokenizers.Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    if has_space_prefix(vocabulary):
        steps.insert(0, normalizers.Prepend(SPACE_MARK))
    tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every pair of pieces whose joined text is a piece, best score first, then the longest left part."""
    textual = (TokenType.UNDEFINED, TokenType.NORMAL, TokenType.USER_DEFINED)
    pieces = {vocabulary.tokens[i]: vocabulary.scores[i] for i in vocabulary.ids_of_type(*textual)}
    ranked = [
        (-score, -cut, piece)
        for piece, score in pieces.items()
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    # Stable: pieces of equal score and cut stay in the order of their ids.
    ranked.sort(key=lambda entry: entry[:2])
    return [(piece[:-minus_cut], piece[-minus_cut:]) for _, minus_cut, piece in ranked]


def has_space_prefix(vocabulary: Vocabulary) -> bool:
    """Whether text gets a space in front before it is cut, and loses it after decoding."""
    return vocabulary.adds_space_prefix is not False


def sentencepiece_bytes(token: str, token_type: int) -> bytes:
    """The bytes a piece stands for: its text with spaces for marks, or the one byte it names."""
    if token_type == TokenType.BYTE:
        return bytes((int(token[3:5], 16),))
    return token.replace(SPACE_MARK, " ").encode()


def sentencepiece_bound(vocabulary: Vocabulary) -> TextBound | None:
    """How much text one token can stand for; None where some bytes have no token.

    Any number of unknown characters in a row is then a single unknown token, or none.
    """
    of_bytes = {int(vocabulary.tokens[i][3:5], 16) for i in vocabulary.ids_of_type(TokenType.BYTE)}
    if len(of_bytes) < 256:
        return None
    return TextBound(max(len(token.encode()) for token in vocabulary.tokens))
