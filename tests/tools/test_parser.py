"""ToolCallParser: calls of every format, whatever the pieces; nothing malformed is lost."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.config.server import TOOL_CALL_PARSERS
from ridgeline.tools.formats import TOOL_FORMATS, detect_format
from ridgeline.tools.parser import ToolCallParser

TOOLS = ("add", "ping")
NOTE = '"} {\\" </tool_call> é🦙'
ARGUMENTS = json.dumps({"a": 1, "b": 2, "note": NOTE}, ensure_ascii=False)
ADD = f'{{"name": "add", "arguments": {ARGUMENTS}}}'


def parse(format_name: str, pieces: list[str]) -> tuple[str, list[list[str]]]:
    """Joined content and [name, joined arguments] of each call."""
    parser = ToolCallParser(TOOL_FORMATS[format_name], TOOLS)
    content, calls = "", list[list[str]]()
    for delta in [*map(parser.push, pieces), parser.finish()]:
        content += delta.content
        for call in delta.calls:
            if call.name is not None:
                assert call.index == len(calls)
                calls.append([call.name, ""])
            calls[call.index][1] += call.arguments
    assert parser.num_calls == len(calls)
    return content, calls


@pytest.mark.parametrize(
    ("format_name", "text", "content", "calls"),
    [
        ("hermes", f"<tool_call>\n{ADD}\n</tool_call>", "", [["add", ARGUMENTS]]),
        ("hermes", f"Sure. \n<tool_call>{ADD}</tool_call>\n", "Sure.", [["add", ARGUMENTS]]),
        (
            "hermes",
            f'<tool_call>{ADD}</tool_call>\n<tool_call>{{"name": "ping"}}</tool_call>',
            "",
            [["add", ARGUMENTS], ["ping", "{}"]],
        ),
        (
            "hermes",
            f'<tool_call>[{ADD}, {{"name":"ping"}}]</tool_call>',
            "",
            [["add", ARGUMENTS], ["ping", "{}"]],
        ),
        ("hermes", f"<tool_call>\n{ADD}", "", [["add", ARGUMENTS]]),
        (
            "hermes",
            f"<tool_call>{ADD[:-1]}</tool_call> without its brace",
            "without its brace",
            [["add", ARGUMENTS]],
        ),
        ("hermes", f"<tool_call>{ADD[:-1]} odd}}", "odd}", [["add", ARGUMENTS]]),
        ("hermes", f"<tool_call>{ADD} odd</tool_call>", "odd</tool_call>", [["add", ARGUMENTS]]),
        ("hermes", f"<tool_call>[{ADD}, odd]</tool_call>", ", odd]</tool_call>", [["add", ARGUMENTS]]),
        ("hermes", f'<tool_call>{ADD[:-1]}, "id": "7"}}</tool_call> ok', "ok", [["add", ARGUMENTS]]),
        (
            "hermes",
            f'<tool_call>{ADD[:-1]}, "id" "7"}}</tool_call>',
            ', "id" "7"}</tool_call>',
            [["add", ARGUMENTS]],
        ),
        ("json", f'{ADD[:-1]}, {{"name": "ping"}}', "", [["add", ARGUMENTS], ["ping", "{}"]]),
        ("hermes", f"<tool_call>{ADD}</tool_call> done", "done", [["add", ARGUMENTS]]),
        (
            "hermes",
            '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>',
            "",
            [["add", '{"a": 1}']],
        ),
        ("hermes", '<tool_call>{"name": "ping", "arguments": null}</tool_call>', "", [["ping", "{}"]]),
        (
            "hermes",
            r'<tool_call>{"name":"add","arguments":"{\"a\":1}"}</tool_call>',
            "",
            [["add", '{"a":1}']],
        ),
        ("llama3_json", '{"name": "add", "parameters": {"a": 1}}', "", [["add", '{"a": 1}']]),
        (
            "llama3_json",
            '<|python_tag|>{"name":"add","parameters":{"a":1}}; {"name":"ping","parameters":{}}',
            "",
            [["add", '{"a":1}'], ["ping", "{}"]],
        ),
        ("json", f"  [{ADD},{ADD}]", "", [["add", ARGUMENTS], ["add", ARGUMENTS]]),
        ("json", f"```json\n{ADD}\n```", "", [["add", ARGUMENTS]]),
        ("json", f"```\n{ADD}\n``` so", "so", [["add", ARGUMENTS]]),
    ],
)
def test_calls_are_read(format_name: str, text: str, content: str, calls: list[list[str]]) -> None:
    assert parse(format_name, [text]) == (content, calls)
    assert parse(format_name, list(text)) == (content, calls)


@pytest.mark.parametrize(
    ("format_name", "text"),
    [
        ("hermes", "no call at all \n"),
        ("hermes", "half a marker <tool_ca"),
        ("hermes", "<tool_call>not json</tool_call> and more"),
        ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "argum'),
        ("hermes", '<tool_call>{"city": "Paris"}</tool_call>'),
        ("hermes", "<tool_call>"),
        ("hermes", '<tool_call>{"name": 3, "id": "x"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add" "id"}</tool_call>'),
        ("llama3_json", '{"city": "Paris", "name": "add"}'),
        ("llama3_json", '{"name": "add", "para'),
        ("llama3_json", "<|python_tag|>print(1)"),
        ("llama3_json", 'Well: {"name": "add", "parameters": {}}'),
        ("json", '```json\n{"a": 1}\n```'),
        ("json", "[1, 2]"),
        ("json", "{}"),
        ("json", "   "),
    ],
)
def test_what_is_no_call_is_content_to_the_letter(format_name: str, text: str) -> None:
    assert parse(format_name, [text]) == (text, [])
    assert parse(format_name, list(text)) == (text, [])


@pytest.mark.parametrize("format_name", list(TOOL_FORMATS))
def test_a_call_that_is_cut_stays_as_it_is(format_name: str) -> None:
    tool_format = TOOL_FORMATS[format_name]
    before, behind = tool_format.frame("add")
    for end in range(1, len(ARGUMENTS)):
        assert parse(format_name, [before, ARGUMENTS[:end]]) == ("", [["add", ARGUMENTS[:end]]])
    assert parse(format_name, [before + ARGUMENTS + behind]) == ("", [["add", ARGUMENTS]])


PIECES = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<tool",
            "\n",
            " ",
            "[",
            "]",
            ",",
            ";",
            "{",
            "}",
            '"',
            "\\",
            "text",
            "é",
        ),
        *(
            ADD,
            ADD[:20],
            ADD[:40],
            '{"name": "ping"}',
            '{"name": "ping", "parameters": {}}',
            "```json",
            "```",
        ),
        *("<|python_tag|>", '{"name": "add", "arguments": ', "null", "3", '"{}"', '{"a": [1, {}]}'),
    ]
)


@settings(max_examples=400)
@given(
    format_name=st.sampled_from(list(TOOL_FORMATS)),
    parts=st.lists(PIECES, max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_the_pieces_change_nothing_and_nothing_is_lost(
    format_name: str, parts: list[str], cuts: list[int]
) -> None:
    text = "".join(parts)
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    whole = parse(format_name, [text])
    assert parse(format_name, pieces) == whole
    assert parse(format_name, list(text)) == whole
    if not whole[1]:
        assert whole[0] == text


@settings(max_examples=400)
@given(format_name=st.sampled_from(list(TOOL_FORMATS)), parts=st.lists(PIECES, max_size=10))
def test_every_word_around_a_call_is_kept(format_name: str, parts: list[str]) -> None:
    """In the content, or in a call's arguments: words stand between any two pieces."""
    words = [f" word{chr(ord('a') + index)} " for index in range(len(parts) + 1)]
    text = "".join(itertools.chain(*zip(words, parts, strict=False), words[-1:]))
    content, calls = parse(format_name, [text])
    kept = content + "".join(arguments for _, arguments in calls)
    assert [word for word in words if word.strip() not in kept] == []


@settings(max_examples=200)
@given(
    format_name=st.sampled_from(list(TOOL_FORMATS)), odd=st.lists(PIECES, max_size=6), cut=st.integers(0, 400)
)
def test_what_follows_a_whole_call_is_kept(format_name: str, odd: list[str], cut: int) -> None:
    """Whatever stands behind it, and also where its closing brace is missing."""
    before, behind = TOOL_FORMATS[format_name].frame("add")
    for call in (before + ARGUMENTS + behind, before + ARGUMENTS):
        text = call + " word " + "".join(odd) + " end"
        content, calls = parse(format_name, [text])
        assert calls[0] == ["add", ARGUMENTS]
        kept = content + "".join(arguments for _, arguments in calls[1:])
        assert "word" in kept
        assert "end" in kept
        assert parse(format_name, [text[:cut], text[cut:]]) == (content, calls)


def test_text_is_passed_on_as_soon_as_it_is_certain() -> None:
    parser = ToolCallParser(TOOL_FORMATS["hermes"], TOOLS)
    assert parser.push("Hello <").content == "Hello"
    assert parser.push("b>").content == " <b>"
    assert parser.push("<tool_call>{").content == ""
    (call,) = parser.push('"name": "add", "arguments": {"a"').calls
    assert (call.name, call.arguments) == ("add", '{"a"')
    (call,) = parser.push(": 12").calls
    assert (call.name, call.arguments) == (None, ": 12")


def test_the_format_is_that_of_the_template_or_the_family() -> None:
    assert detect_format("{{ tools }} <tool_call>", "x").name == "hermes"
    assert detect_format("{{ tools }} <|python_tag|>", "x").name == "llama3_json"
    assert detect_format(None, "SmolLM2-135M-Instruct").name == "hermes"
    assert detect_format("{{ messages }}", "Llama-3.2-1B").name == "llama3_json"
    assert detect_format(None, "other").name == "json"


def test_the_option_offers_the_whole_table() -> None:
    assert ("auto", *TOOL_FORMATS) == TOOL_CALL_PARSERS
