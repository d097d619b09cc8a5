"""Vocabulary: the tokens of a GGUF file and what the file says of them, checked.

Key names and token types are those of the GGUF specification (`tokenizer.ggml.*`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

from ridgeline.errors import ModelFileError

TOKENIZER_MODELS = ("gpt2", "llama")
"""Values of `tokenizer.ggml.model` that are understood: byte-level BPE and SentencePiece BPE."""

SPACE_MARK = "▁"
"""How SentencePiece writes a space inside its tokens (U+2581)."""

_PREFIX = "tokenizer.ggml."
_REMEDY = "fetch the file again or convert the model anew"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_T = TypeVar("_T")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Tokens by id, with their types, and the ids and switches the file names.

    `merges` (gpt2) are pairs in order of rank; `scores` (llama) are per token, higher merges first.
    `adds_bos`, `adds_eos` and `adds_space_prefix` are None where the file says nothing.
    """

    path: Path
    model: str
    pre: str
    tokens: Sequence[str]
    token_types: Sequence[int]
    merges: Sequence[tuple[str, str]]
    scores: Sequence[float]
    bos_token_id: int | None
    eos_token_id: int | None
    unknown_token_id: int | None
    eos_token_ids: frozenset[int]
    adds_bos: bool | None
    adds_eos: bool | None
    adds_space_prefix: bool | None

    def ids_of_type(self, *token_types: TokenType) -> list[int]:
        """Ids of all tokens that have one of these types, in order."""
        return [i for i, kind in enumerate(self.token_types) if kind in token_types]


def read_vocabulary(metadata: Mapping[str, object], *, path: Path) -> Vocabulary:
    """Read and check the tokenizer part of a GGUF file's metadata.

    Raises:
        ModelFileError: a key is missing or of the wrong type, lengths disagree, an id is outside the
            vocabulary, or the kind of tokenizer is not understood.
    """
    keys = _Keys(metadata, path)
    model = keys.one("model", str)
    if model not in TOKENIZER_MODELS:
        known = ", ".join(TOKENIZER_MODELS)
        raise ModelFileError(
            path, f"tokenizer model {model!r} is not supported", f"use a model with one of: {known}"
        )
    tokens = keys.array("tokens", str)
    if not tokens:
        raise keys.error("tokens", "is empty")
    _check_utf8(tokens, keys)
    bos, eos, unknown = (keys.token_id(name, len(tokens)) for name in ("bos", "eos", "unknown"))
    ends = (eos, keys.token_id("eot", len(tokens)), keys.token_id("eom", len(tokens)))
    token_types = _read_token_types(keys, tokens, is_needed=model == "llama")
    if model == "llama":
        bos, eos, unknown = _with_sentencepiece_defaults((bos, eos, unknown), token_types)
    eos_token_ids = frozenset(i for i in (*ends, eos) if i is not None)
    for token_id in {*eos_token_ids, bos} - {None}:
        # A file that types its own end marker as ordinary text would never stop.
        token_types[token_id] = TokenType.CONTROL  # type: ignore[index]
    return Vocabulary(
        path=path,
        model=model,
        pre=keys.one("pre", str, default="default"),
        tokens=tokens,
        token_types=token_types,
        merges=_read_merges(keys, tokens) if model == "gpt2" else (),
        scores=keys.array("scores", float, length=len(tokens)) if model == "llama" else (),
        bos_token_id=bos,
        eos_token_id=eos,
        unknown_token_id=unknown,
        eos_token_ids=eos_token_ids,
        adds_bos=keys.flag("add_bos_token"),
        adds_eos=keys.flag("add_eos_token"),
        adds_space_prefix=keys.flag("add_space_prefix"),
    )


class _Keys:
    """Typed look-ups under `tokenizer.ggml.`; every mistake names the key."""

    def __init__(self, metadata: Mapping[str, object], path: Path) -> None:
        self._metadata = metadata
        self._path = path

    def error(self, name: str, problem: str) -> ModelFileError:
        return ModelFileError(self._path, f"{_PREFIX}{name} {problem}", _REMEDY)

    def has(self, name: str) -> bool:
        return f"{_PREFIX}{name}" in self._metadata

    def one(self, name: str, kind: type[_T], *, default: _T | None = None) -> _T:
        value = self._metadata.get(f"{_PREFIX}{name}", default)
        if value is None:
            raise self.error(name, "is missing")
        if type(value) is not kind:
            raise self.error(name, f"is {type(value).__name__}, not {kind.__name__}")
        return value

    def flag(self, name: str) -> bool | None:
        return self.one(name, bool) if self.has(name) else None

    def array(self, name: str, kind: type[_T], *, length: int | None = None) -> list[_T]:
        values = self._metadata.get(f"{_PREFIX}{name}")
        if values is None:
            raise self.error(name, "is missing")
        if isinstance(values, str | bytes) or not isinstance(values, Sequence):
            raise self.error(name, f"is {type(values).__name__}, not an array")
        if length is not None and len(values) != length:
            raise self.error(name, f"has {len(values)} entries for {length} tokens")
        # One set over all entries: a vocabulary may hold hundreds of thousands.
        for found in {type(value) for value in values} - {kind}:
            raise self.error(name, f"holds {found.__name__}, not {kind.__name__}")
        return list(values)

    def token_id(self, name: str, vocab_size: int) -> int | None:
        key = f"{name}_token_id"
        if not self.has(key):
            return None
        token_id = self.one(key, int)
        if not 0 <= token_id < vocab_size:
            raise self.error(key, f"is {token_id}, outside the {vocab_size} tokens")
        return token_id


def _check_utf8(tokens: Sequence[str], keys: _Keys) -> None:
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError:
        raise keys.error("tokens", "holds text that is not valid UTF-8") from None


def _read_token_types(keys: _Keys, tokens: Sequence[str], *, is_needed: bool) -> list[int]:
    if not is_needed and not keys.has("token_type"):
        return [TokenType.NORMAL] * len(tokens)
    token_types = keys.array("token_type", int, length=len(tokens))
    for unknown in set(token_types) - set(TokenType):
        raise keys.error("token_type", f"holds {unknown}, which is no token type")
    for token, kind in zip(tokens, token_types, strict=True):
        if is_needed and kind == TokenType.BYTE and not _BYTE_TOKEN.fullmatch(token):
            raise keys.error("tokens", f"holds {token!r} as a byte, which is written <0xNN>")
    return token_types


def _read_merges(keys: _Keys, tokens: Sequence[str]) -> list[tuple[str, str]]:
    known = set(tokens)
    merges: list[tuple[str, str]] = []
    for rank, merge in enumerate(keys.array("merges", str)):
        left, _, right = merge.partition(" ")
        if left not in known or right not in known or left + right not in known:
            raise keys.error("merges", f"entry {rank} ({merge!r}) is no pair of tokens that makes a token")
        merges.append((left, right))
    return merges


def _with_sentencepiece_defaults(ids: tuple[int | None, ...], token_types: Sequence[int]) -> list[int | None]:
    """SentencePiece puts unknown, BOS and EOS at 0, 1, 2 unless told otherwise."""
    marked = (TokenType.CONTROL, TokenType.UNKNOWN)
    return [
        default if given is None and default < len(token_types) and token_types[default] in marked else given
        for given, default in zip(ids, (1, 2, 0), strict=True)
    ]
