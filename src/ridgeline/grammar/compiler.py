"""GrammarCompiler: a form that a text must have becomes a grammar, or a RequestError that says why not."""

from __future__ import annotations

import json
import string
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from ridgeline.errors import RequestError
from ridgeline.grammar.json_schema import Schema, find_problem
from ridgeline.grammar.matcher import CompiledGrammar
from ridgeline.structured_outputs import StructuredOutputs
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_FORCED_BYTES = 16_384
"""Longest beginning that a grammar may dictate, in bytes; one that never ends dictates more."""
MAX_GRAMMAR_LINES = 1000
"""Most lines of a grammar: long chains of rules overflow the compiler's stack."""
MAX_JOINED_TERMS = 8
"""Most terms that a grammar joins by `&`, which takes exponential time."""


class GrammarCompiler:
    """Compiles for one model's vocabulary, and keeps the last `capacity` grammars by their content.

    May be used from several threads; the one that compiles holds up those that want to compile too, and
    nobody else. llguidance is loaded, and the vocabulary is prepared (some 0.3 s), at the first grammar.
    """

    def __init__(self, tokenizer: Tokenizer, *, capacity: int = 128) -> None:
        self._tokenizer = tokenizer
        self._capacity = capacity
        self._known: OrderedDict[StructuredOutputs, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None

    def compile(self, structured_outputs: StructuredOutputs) -> CompiledGrammar:
        """The grammar of a form, from memory if it was asked for before.

        Raises:
            RequestError: it can't be followed: names the keyword and its place, or the place in the text.
        """
        with self._lock:
            known = self._known.pop(structured_outputs, None) or self._compiled(structured_outputs)
            self._known[structured_outputs] = known
            if len(self._known) > self._capacity:
                self._known.popitem(last=False)
        return known

    def _compiled(self, wanted: StructuredOutputs) -> CompiledGrammar:
        if not self._tokenizer.eos_token_ids:
            remedy = "the model names no end-of-sequence token, which must end such a text"
            raise RequestError("structured_outputs", wanted.kind, remedy)
        field = f"structured_outputs.{wanted.kind}"
        matcher = self._new_matcher(self._source(wanted, field))
        if matcher.is_error():
            raise RequestError(field, wanted.content, f"can't be followed: {_one_line(matcher.get_error())}")
        _check_begins(matcher, field, wanted.content)
        return CompiledGrammar(
            matcher,
            vocab_size=self._tokenizer.vocab_size,
            eos_token_ids=self._tokenizer.eos_token_ids,
            # Text that is cut on its own gets a space in front there, so its ids say nothing.
            forces_tokens=not self._tokenizer.adds_space_prefix,
        )

    def _source(self, wanted: StructuredOutputs, field: str) -> str:
        """llguidance's text of a grammar."""
        from llguidance import LLMatcher, grammar_from, regex_to_lark

        if wanted.kind == "json":
            schema = json.loads(wanted.content)
            problem = find_problem(schema, self._error_of_schema)
            if problem is not None:
                raise RequestError(field, problem.pointer, problem.reason)
            return _schema_source(schema)
        if wanted.choice is not None:
            return LLMatcher.grammar_from_regex("|".join(map(_literal, wanted.choice)))
        if wanted.regex is not None:
            # Digits, word characters and spaces in ASCII: what most writers of \d mean.
            return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(wanted.regex, 'dws')}/")
        _check_grammar_text(wanted.content, field)
        try:
            return grammar_from("grammar", wanted.content)
        except ValueError as error:
            raise RequestError(field, wanted.content, _one_line(str(error))) from None

    def _error_of_schema(self, schema: Schema) -> str | None:
        matcher = self._new_matcher(_schema_source(schema))
        return _one_line(matcher.get_error()) if matcher.is_error() else None

    def _new_matcher(self, source: str) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        if self._vocabulary is None:
            self._vocabulary = _vocabulary_of(self._tokenizer)
        limits = LLParserLimits(verbose_errors=False)
        return LLMatcher(self._vocabulary, source, log_level=0, limits=limits)


class _TokenTable:
    """A vocabulary as llguidance reads it: the bytes of every token, and how text is cut into tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_token_ids)
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_token_ids)

    def __call__(self, text: bytes | str) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode()
        return self._tokenizer.encode(text, parse_special=False)


def _vocabulary_of(tokenizer: Tokenizer) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    table = TokenizerWrapper(_TokenTable(tokenizer))
    return LLTokenizer(table, eos_token=sorted(tokenizer.eos_token_ids))


def _schema_source(schema: Schema) -> str:
    from llguidance import LLMatcher

    own = {key: value for key, value in schema.items() if key != "x-guidance"}
    return LLMatcher.grammar_from_json_schema(own, overrides={"whitespace_flexible": False})


def _check_grammar_text(text: str, field: str) -> None:
    """Refuse what could take the compiler, and the process with it, too far."""
    num_lines = len(text.splitlines())
    if num_lines > MAX_GRAMMAR_LINES:
        raise RequestError(field, f"{num_lines} lines", f"must be at most {MAX_GRAMMAR_LINES} lines")
    if text.count("&") > MAX_JOINED_TERMS:
        raise RequestError(field, text.count("&"), f"joins too many terms by &: at most {MAX_JOINED_TERMS}")
    if "%json" in text:
        raise RequestError(field, "%json", "a schema inside a grammar is not supported: give json instead")


def _literal(text: str) -> str:
    """An expression for nothing but `text`."""
    plain = frozenset(string.ascii_letters + string.digits)
    return "".join(char if char in plain else f"\\x{{{ord(char):X}}}" for char in text)


def _check_begins(matcher: LLMatcher, field: str, content: str) -> None:
    """Refuse what dictates an endless beginning, and what allows no beginning at all."""
    num_forced = len(matcher.compute_ff_bytes())
    if num_forced > MAX_FORCED_BYTES:
        raise RequestError(field, content, f"dictates more than {MAX_FORCED_BYTES} bytes, or never ends")
    matcher.compute_bitmask()
    if matcher.is_error():
        raise RequestError(field, content, f"no text satisfies it: {_one_line(matcher.get_error())}")


def _one_line(message: str) -> str:
    return " ".join(message.replace("<non-verbose/>", "").split())
