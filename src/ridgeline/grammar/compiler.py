"""GrammarCompiler: a form that a text must have becomes a grammar, or a RequestError that says why not."""

from __future__ import annotations

import json
import re
import string
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from ridgeline.errors import RequestError
from ridgeline.grammar.json_schema import find_problem, spelled
from ridgeline.grammar.matcher import CompiledGrammar, one_line
from ridgeline.grammar.unkept import Schema
from ridgeline.structured_outputs import StructuredOutputs, ToolCallForm
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_FORCED_BYTES = 16_384
"""Longest beginning that a grammar may dictate, in bytes; one that never ends dictates more."""
MAX_GRAMMAR_LINES = 1000
"""Most lines of a grammar: long chains of rules overflow the compiler's stack."""
MAX_ALTERNATIVES = 20_000
"""Most alternatives in a grammar: compiling takes time by their square."""
MAX_JOINED_TERMS = 8
"""Most terms that a grammar joins by `&`, which takes exponential time."""

_JSON_PIECE = re.compile(r'"[^"]*"|[{}:,]|[^"{}:,]+')

Form = StructuredOutputs | ToolCallForm


class GrammarCompiler:
    """Compiles for one model's vocabulary, and keeps the last `capacity` grammars by their content.

    May be used from several threads; the one that compiles holds up those that must compile too, and
    nobody else: what is known is found meanwhile. llguidance is loaded, and the vocabulary is prepared
    (some 0.3 s), at the first grammar.
    """

    def __init__(self, tokenizer: Tokenizer, *, capacity: int = 128) -> None:
        self._tokenizer = tokenizer
        self._capacity = capacity
        self._known: OrderedDict[Form, CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()
        self._compile_lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None

    def compile(self, form: Form) -> CompiledGrammar:
        """The grammar of a form, from memory if it was asked for before.

        Raises:
            RequestError: it can't be followed: names the keyword and its place, or the place in the text.
        """
        known = self._found(form)
        if known is None:
            with self._compile_lock:
                known = self._found(form) or self._compiled(form)
                with self._lock:
                    self._known[form] = known
                    if len(self._known) > self._capacity:
                        self._known.popitem(last=False)
        return known

    def _found(self, form: Form) -> CompiledGrammar | None:
        with self._lock:
            known = self._known.get(form)
            if known is not None:
                self._known.move_to_end(form)
        return known

    def _compiled(self, form: Form) -> CompiledGrammar:
        if not self._tokenizer.eos_token_ids:
            remedy = "the model names no end-of-sequence token, which must end such a text"
            raise RequestError("structured_outputs", type(form).__name__, remedy)
        if isinstance(form, ToolCallForm):
            field, content, source = "tools", "…", self._source_of_calls(form)
        else:
            field, content = f"structured_outputs.{form.kind}", form.content
            source = self._source(form, field)
        matcher = self._new_matcher(source)
        if matcher.is_error():
            raise RequestError(field, content, f"can't be followed: {one_line(matcher.get_error())}")
        _check_begins(matcher, field, content)
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
            return _schema_source(self._checked_schema(wanted.content, field))
        if wanted.choice is not None:
            return LLMatcher.grammar_from_regex("|".join(map(_literal, wanted.choice)))
        if wanted.regex is not None:
            # Digits, word characters and spaces in ASCII: what most writers of \d mean.
            return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(wanted.regex, 'dws')}/")
        _check_grammar_text(wanted.content, field)
        try:
            return grammar_from("grammar", wanted.content)
        except ValueError as error:
            raise RequestError(field, wanted.content, one_line(str(error))) from None

    def _source_of_calls(self, form: ToolCallForm) -> str:
        from llguidance import LLMatcher

        rules = _call_rules(form)
        for i, frame in enumerate(form.frames):
            schema = _compact(self._checked_schema(frame.schema, frame.field))
            rules += [f"args_{i}: %json {schema}", f"behind_{i}: args_{i} {json.dumps(frame.behind)}"]
        if form.answer is not None:
            schema = _compact(self._checked_schema(form.answer, "structured_outputs.json"))
            rules.append(f"answer: %json {schema}")
        return LLMatcher.grammar_from_lark("\n".join(rules))

    def _checked_schema(self, text: str, field: str) -> Schema:
        schema: Schema = json.loads(text)
        problem = find_problem(schema, self._error_of_schema)
        if problem is not None:
            raise RequestError(field, problem.pointer, problem.reason)
        return schema

    def _error_of_schema(self, schema: Schema) -> str | None:
        try:
            matcher = self._new_matcher(_schema_source(schema))
        except ValueError as error:  # nested too deeply
            return one_line(str(error))
        return one_line(matcher.get_error()) if matcher.is_error() else None

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

    own = {key: value for key, value in spelled(schema).items() if key != "x-guidance"}
    # As text: numbers beyond 64 bits, in a default say, are no error there.
    return LLMatcher.grammar_from_json_schema(json.dumps(own), overrides={"whitespace_flexible": False})


def _compact(schema: Schema) -> str:
    """A schema as it stands in a grammar, for JSON without free space."""
    return json.dumps({**spelled(schema), "x-guidance": {"whitespace_flexible": False}})


def _check_grammar_text(text: str, field: str) -> None:
    """Refuse what could take the compiler, and the process with it, too far."""
    num_lines = len(text.splitlines())
    if num_lines > MAX_GRAMMAR_LINES:
        raise RequestError(field, f"{num_lines} lines", f"must be at most {MAX_GRAMMAR_LINES} lines")
    if text.count("|") > MAX_ALTERNATIVES:
        raise RequestError(field, text.count("|"), f"has too many alternatives: at most {MAX_ALTERNATIVES}")
    if text.count("&") > MAX_JOINED_TERMS:
        raise RequestError(field, text.count("&"), f"joins too many terms by &: at most {MAX_JOINED_TERMS}")
    if "%json" in text:
        raise RequestError(field, "%json", "a schema inside a grammar is not supported: give json instead")


def _call_rules(form: ToolCallForm) -> list[str]:
    """The rules around the arguments; `behind_0` and so on are those of each tool from there to its end."""
    numbers = range(len(form.frames))
    more = f"({json.dumps(form.separator)} call){{0,{form.max_calls - 1}}}" if form.max_calls > 1 else ""
    write = json.dumps if form.answer is None else _in_json_pieces
    calls = " | ".join(f"{write(form.frames[i].before)} behind_{i}" for i in numbers)
    rules = [f"call: {calls}"]
    if not form.allows_text:
        answer = "answer | " if form.answer is not None else ""
        return [f"start: {answer}call {more}", *rules]
    # A call begins where the opening comes first, however long the text before it.
    rest = [json.dumps(frame.before.removeprefix(form.opening)) for frame in form.frames]
    first = " | ".join(f"opened {rest[i]} behind_{i}" for i in numbers)
    return [
        f"start: PLAIN? | first {more}",
        f"first: {first}",
        f"opened[lazy]: /(?s:.*){re.escape(form.opening)}/",
        f"PLAIN: /{_text_without(form.opening)}/",
        *rules,
    ]


def _in_json_pieces(text: str) -> str:
    """`text` piece by piece, as JSON is read: what is one piece hides an answer that begins alike."""
    return " ".join(map(json.dumps, _JSON_PIECE.findall(text)))


def _text_without(marker: str) -> str:
    """An expression for texts in which `marker` does not stand, nor begins at the end.

    At each place either the first character of the marker does not come, or one of its own beginnings does
    that does not go on as the marker would.
    """
    first = re.escape(marker[0])
    ways = [f"[^{first}]"]
    for length in range(1, len(marker)):
        begun, following = "".join(map(re.escape, marker[:length])), re.escape(marker[length])
        ways.append(f"{begun}[^{following}{first}]")
    return f"({'|'.join(ways)})+"


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
        raise RequestError(field, content, f"no text satisfies it: {one_line(matcher.get_error())}")
