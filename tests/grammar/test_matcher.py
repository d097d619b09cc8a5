"""GrammarMatcher: what may come next, what is settled ahead, and how it finds its place again."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.grammar.compiler import GrammarCompiler
from ridgeline.grammar.matcher import MAX_JUMP_TOKENS, CompiledGrammar, GrammarMatcher
from ridgeline.structured_outputs import StructuredOutputs
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer

EOS = 2
SCHEMA = {"const": {"name": "eel", "é🦙": [1, None]}}
TEXT = '{"name":"eel","é🦙":[1,null]}'


def new_matcher(compiler: GrammarCompiler, **wanted: object) -> GrammarMatcher:
    return GrammarMatcher(compiler.compile(StructuredOutputs(**wanted)))  # type: ignore[arg-type]


def allowed(matcher: GrammarMatcher, vocab_size: int = 320) -> list[int]:
    mask = np.zeros(-(-vocab_size // 32), np.uint32)
    matcher.fill_mask(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def test_dictated_text_is_spelled_as_the_tokenizer_would(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(TEXT)
    matcher = new_matcher(compiler, json=SCHEMA)
    assert allowed(matcher) == ids[:1]
    assert matcher.jump(ids[0]) == [*ids[1:], EOS]


def test_one_by_one_gives_the_same_ids_as_a_jump(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = new_matcher(compiler, json=SCHEMA)
    ids: list[int] = []
    while ids[-1:] != [EOS]:
        (token_id,) = allowed(matcher)
        ids.append(token_id)
        matcher.follow(ids)
    assert ids == [*tokenizer.encode(TEXT), EOS]


def test_the_end_is_allowed_only_where_the_text_may_end(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    matcher = new_matcher(compiler, regex="a[b-d]{1,2}")
    a, b, c = (tokenizer.encode(letter)[0] for letter in "abc")
    assert EOS not in allowed(matcher)
    assert matcher.jump(a) == []
    assert EOS not in allowed(matcher)
    assert matcher.jump(b) == []
    assert {EOS, b, c} <= set(allowed(matcher))
    assert matcher.jump(c) == [EOS]


def test_control_tokens_are_never_part_of_a_text(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = new_matcher(compiler, regex="[^x]*")
    assert set(allowed(matcher)) & tokenizer.special_token_ids == {EOS}
    for text in ("<|im_end|>", "<|im_start|>"):
        matcher = new_matcher(compiler, choice=[text])
        ids = [allowed(matcher)[0]]
        ids += matcher.jump(ids[0])
        assert tokenizer.decode(ids[:-1]) == text
        assert not set(ids[:-1]) & tokenizer.special_token_ids


@pytest.mark.parametrize(
    "text", ['a "quoted" \\ text', "line\nfeed\ttab", "é🦙 日本 🇫🇷 ﷽", "\x01\x7f", "/re/i | x"]
)
def test_a_choice_is_taken_literally(compiler: GrammarCompiler, tokenizer: Tokenizer, text: str) -> None:
    matcher = new_matcher(compiler, choice=[text])
    first = allowed(matcher)[0]
    assert tokenizer.decode([first, *matcher.jump(first)][:-1]) == text


def test_less_output_than_was_taken_starts_over(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = new_matcher(compiler, regex="[a-z]{4}")
    ids = tokenizer.encode("a") + tokenizer.encode("b") + tokenizer.encode("c")
    matcher.follow(ids)
    after = allowed(matcher)
    matcher.follow(ids[:1])
    assert len(allowed(matcher)) > len(after)
    matcher.follow(ids)
    assert allowed(matcher) == after


def test_digits_and_words_of_an_expression_are_ascii(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    texts = {tokenizer.token_text(token_id) for token_id in allowed(new_matcher(compiler, regex=r"\d"))}
    assert texts == set("0123456789")


def test_a_jump_is_no_longer_than_a_step_should_be(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    matcher = new_matcher(compiler, choice=["ab" * 400])
    first = allowed(matcher)[0]
    forced = matcher.jump(first)
    assert len(forced) == MAX_JUMP_TOKENS
    assert ("ab" * 400).startswith(tokenizer.decode([first, *forced]))
    assert len(allowed(matcher)) == 1


def test_a_grammar_that_grows_too_complex_says_so(fragile_grammar: CompiledGrammar) -> None:
    matcher = GrammarMatcher(fragile_grammar)
    first = allowed(matcher)[0]
    assert matcher.error is None
    matcher.follow([first])
    allowed(matcher)
    assert "Too many items" in str(matcher.error)
