"""What llguidance would compile and not keep: refused by its keyword, or spelled so that it is kept."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import RequestError
from ridgeline.grammar.compiler import GrammarCompiler
from ridgeline.grammar.matcher import CompiledGrammar
from ridgeline.grammar.unkept import kept_pattern
from ridgeline.structured_outputs import StructuredOutputs, ToolCallForm, ToolFrame
from ridgeline.tokenizer.gguf_tokenizer import Tokenizer


def takes(grammar: CompiledGrammar, tokenizer: Tokenizer, text: str) -> bool:
    state, ids = grammar.new_state(), tokenizer.encode(text, parse_special=False)
    return state.try_consume_tokens(ids) == len(ids) and state.is_accepting()


BOUNDS = "can only be kept with a"


@pytest.mark.parametrize(
    ("schema", "pointer", "reason"),
    [
        # These two overflowed the compiler's stack and took the process with them.
        ({"const": -(2**63)}, "/const", "beyond 2^53"),
        ({"type": "integer", "minimum": -(2**63), "maximum": -(2**63)}, "/minimum", "beyond 2^53"),
        ({"enum": [1, {"a": [12345678901234567890]}]}, "/enum", "beyond 2^53"),
        ({"items": {"type": "integer", "exclusiveMaximum": 2**64}}, "/items/exclusiveMaximum", "beyond 2^53"),
        ({"type": "number", "minimum": -1e300}, "/minimum", "beyond 2^53"),
        ({"type": "string", "maxLength": 10**30}, "/maxLength", "beyond 2^53"),
        (
            {"type": "number", "exclusiveMinimum": 5, "exclusiveMaximum": 5.01},
            "/exclusiveMinimum",
            BOUNDS,
        ),
        ({"type": "number", "minimum": -5.5, "exclusiveMaximum": -5.0}, "/exclusiveMaximum", BOUNDS),
        ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}, "/exclusiveMaximum", BOUNDS),
        (
            {
                "allOf": [{"type": "number", "exclusiveMinimum": 5}, {"$ref": "#/$defs/m"}],
                "$defs": {"m": {"maximum": 5.5}},
            },
            "/exclusiveMinimum",
            BOUNDS,
        ),
        (
            {"exclusiveMinimum": 5, "anyOf": [{"type": "null"}, {"type": "number", "maximum": 5.5}]},
            "/exclusiveMinimum",
            BOUNDS,
        ),
        ({"type": "string", "pattern": "^\\p{Cc}+$"}, "/pattern", "control characters"),
        ({"type": "string", "pattern": "^[a\\x00]$"}, "/pattern", "control characters"),
        (
            {"type": "object", "patternProperties": {"^[\\u0000x]$": {}}},
            "/patternProperties",
            "control characters",
        ),
    ],
)  # fmt: skip
def test_what_would_not_be_kept_is_refused_by_its_keyword(
    compiler: GrammarCompiler, schema: dict[str, object], pointer: str, reason: str
) -> None:
    with pytest.raises(RequestError) as caught:
        compiler.compile(StructuredOutputs(json=schema))
    assert (caught.value.value, reason in caught.value.remedy) == (pointer, True)


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"const": 2**53}, ["9007199254740992"], ["9007199254740993"]),
        ({"type": "number", "exclusiveMinimum": 5, "maximum": 6}, ["5.01", "6"], ["5", "5.0", "6.1"]),
        ({"type": "number", "exclusiveMinimum": 0.5, "maximum": 0.7}, ["0.51"], ["0.5", "0.50"]),
        ({"anyOf": [{"type": "number", "exclusiveMinimum": 5}, {"const": 5.5}]}, ["5.5", "6"], ["5"]),
        ({"type": "null", "default": 2**70, "title": "2^70"}, ["null"], []),
        ({"type": "string", "pattern": '^[^"]+$'}, ['"a"', '"\\n"', '"\\\\"'], ['"\\""', '""']),
        ({"type": "string", "pattern": "^[^\\\\]$"}, ['"a"', '"\\""'], ['"\\\\"']),
        ({"type": "string", "pattern": "^[\\x00-\\x1f]$"}, ['"\\n"', '"\\u001f"'], ['"\\""', '"\\\\"']),
        ({"type": "string", "pattern": "^\\P{P}$"}, ['"a"', '"\\n"'], ['"\\""', '"\\\\"', '"!"']),
        ({"type": "string", "pattern": "^[^[\\]]$"}, ['"a"', '"\\""'], ['"["', '"]"']),
        ({"type": "string", "pattern": "^[+--]$"}, ['","', '"-"', '"+"'], ['"a"', '"."']),
        ({"type": "string", "pattern": "^[^-a]$"}, ['"b"'], ['"-"', '"a"']),
        ({"type": "string", "pattern": "^[&&a]$"}, ['"&"', '"a"'], ['"b"']),
        (
            {"type": "object", "patternProperties": {'^[^"]$': {"const": 1}}, "additionalProperties": False},
            ['{"a":1}', "{}"],
            ['{"\\"":1}'],
        ),
    ],
)  # fmt: skip
def test_what_is_taken_is_kept(
    compiler: GrammarCompiler,
    tokenizer: Tokenizer,
    schema: dict[str, object],
    taken: list[str],
    refused: list[str],
) -> None:
    grammar = compiler.compile(StructuredOutputs(json=schema))
    assert [text for text in taken if not takes(grammar, tokenizer, text)] == []
    assert [text for text in refused if takes(grammar, tokenizer, text)] == []


def test_arguments_of_tools_are_kept_too(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"pattern": '^[^"]$', "type": "string"}}})
    form = ToolCallForm(frames=(ToolFrame("tools", "<", schema, ">"),), separator="")
    grammar = compiler.compile(form)
    assert takes(grammar, tokenizer, '<{"a":"b"}>')
    assert not takes(grammar, tokenizer, '<{"a":"\\""}>')


@pytest.mark.parametrize(
    "form",
    [
        {"json": {"const": "\ud800"}},
        {"json": '{"title": "\\ud800"}'},
        {"regex": "a\udfff"},
        {"choice": ["a", "\ud800"]},
        {"grammar": 'start: "\ud800"'},
    ],
)
def test_half_a_surrogate_pair_is_refused(form: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="half a surrogate pair"):
        StructuredOutputs(**form)  # type: ignore[arg-type]


@given(
    st.text(st.sampled_from('ab"\\[]^-&~.d\n'), max_size=12),
    st.text(st.sampled_from('ab"[]^-&~.\n'), max_size=2),
)
def test_a_pattern_means_the_same_as_it_is_kept(pattern: str, text: str) -> None:
    """By Python's own reading, which knows no nested classes and no set operations either."""
    kept = kept_pattern(pattern)
    assert kept is not None
    try:
        compiled = re.compile(pattern)
    except (re.error, FutureWarning):
        return
    assert (re.compile(kept).search(text) is None) == (compiled.search(text) is None)
