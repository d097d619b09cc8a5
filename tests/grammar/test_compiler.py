"""GrammarCompiler: what it refuses of expressions and grammars, what it remembers, whom it serves."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ridgeline.errors import RequestError
from ridgeline.grammar.compiler import GrammarCompiler
from ridgeline.grammar.matcher import GrammarMatcher
from ridgeline.structured_outputs import StructuredOutputs, ToolCallForm, ToolFrame
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer, build_tokenizer


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"regex": "("}, "unclosed group"),
        ({"regex": r"a(?=b)"}, "look-ahead"),
        ({"regex": r"\bfoo"}, "lookarounds not supported"),
        ({"regex": r"(a)\1"}, "backreferences are not supported"),
        ({"regex": "a{20000}"}, "dictates more than"),
        ({"regex": "(" * 5000 + "a" + ")" * 5000}, "nest"),
        ({"grammar": "start: foo"}, 'unknown name: "foo"'),
        ({"grammar": 'start: "a" start'}, "never ends"),
        ({"grammar": "root ::= ("}, "GBNF"),
        ({"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000}, "too deeply nested"),
        ({"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000}, "recursion"),
        ({"grammar": 'start: "a"\n' + "\n".join(f'r{i}: "b"' for i in range(1000))}, "at most 1000 lines"),
        ({"grammar": "start: " + "|".join(f'"x{i}"' for i in range(20_002))}, "at most 20000"),
        ({"grammar": "start: A\nA: " + " & ".join(["/a/"] * 10)}, "at most 8"),
        ({"grammar": 'start: a\na: %json {"uniqueItems": true}'}, "give json instead"),
    ],
)
def test_a_refusal_says_why_in_one_line(
    compiler: GrammarCompiler, wanted: dict[str, str], reason: str
) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.compile(StructuredOutputs(**wanted))  # type: ignore[arg-type]
    assert caught.value.field == f"structured_outputs.{next(iter(wanted))}"
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1300


def test_grammars_are_kept_by_content_and_the_oldest_goes(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer, capacity=2)
    first = compiler.compile(StructuredOutputs(json='{"type": "null"}'))
    assert compiler.compile(StructuredOutputs(json={"type": "null"})) is first
    second = compiler.compile(StructuredOutputs(regex="a"))
    assert compiler.compile(StructuredOutputs(json={"type": "null"})) is first
    compiler.compile(StructuredOutputs(regex="b"))
    assert compiler.compile(StructuredOutputs(json={"type": "null"})) is first
    assert compiler.compile(StructuredOutputs(regex="a")) is not second


def test_many_threads_get_one_grammar(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(tokenizer)
    with ThreadPoolExecutor(8) as pool:
        grammars = list(pool.map(lambda _: compiler.compile(StructuredOutputs(json=True)), range(16)))
    assert len({id(grammar) for grammar in grammars}) == 1


def test_what_is_known_is_found_while_another_thread_compiles(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = GrammarCompiler(tokenizer)
    known = compiler.compile(StructuredOutputs(json=True))
    compiling, may_end, compiled = threading.Event(), threading.Event(), compiler._compiled

    def slowly(form: object) -> object:
        compiling.set()
        assert may_end.wait(60)
        return compiled(form)  # type: ignore[arg-type]

    monkeypatch.setattr(compiler, "_compiled", slowly)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(compiler.compile, StructuredOutputs(regex="a"))
        assert compiling.wait(60)
        found = pool.submit(compiler.compile, StructuredOutputs(json=True))
        try:
            assert found.result(60) is known
            assert not slow.done()
        finally:
            may_end.set()
        assert compiler.compile(StructuredOutputs(regex="a")) is slow.result()


def test_a_model_without_an_end_token_is_refused(tiny_model: Path) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b"],
        "tokenizer.ggml.merges": [],
    }
    compiler = GrammarCompiler(build_tokenizer(metadata, path=tiny_model))
    with pytest.raises(RequestError, match="no end-of-sequence token"):
        compiler.compile(StructuredOutputs(regex="a"))


def test_a_vocabulary_that_puts_a_space_in_front_is_spelled_by_the_model() -> None:
    """Nothing is dictated token by token there: text cut on its own begins with another token."""
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)], "▁", "ab"],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 1, 1],
        "tokenizer.ggml.scores": [0.0] * 261,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    tokenizer = build_tokenizer(metadata, path=Path("pieces.gguf"))
    matcher = GrammarMatcher(GrammarCompiler(tokenizer).compile(StructuredOutputs(choice=["ab"])))
    assert matcher.jump(3 + ord("a")) == []
    assert matcher.jump(3 + ord("b")) == [2]


PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}}}
ANSWERS = ('{"name":"Bob","arguments":{}}', '{"name":"add"}', "{}")
CALLS = (
    '{"name": "add", "arguments": {}}',
    '{"name": "add", "arguments": {}}\n{"name": "add", "arguments": {}}',
)


@pytest.mark.parametrize("text", [*ANSWERS, *CALLS])
def test_an_answer_may_begin_as_a_call_does(
    compiler: GrammarCompiler, tokenizer: Tokenizer, text: str
) -> None:
    frame = ToolFrame("tools", '{"name": "add", "arguments": ', '{"const":{}}', "}")
    form = ToolCallForm(frames=(frame,), separator="\n", max_calls=2, answer=json.dumps(PERSON))
    state = compiler.compile(form).new_state()
    assert state.consume_tokens(tokenizer.encode(text))
    assert state.is_accepting()
