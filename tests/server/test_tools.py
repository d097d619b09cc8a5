"""Tools over HTTP with the openai client: required, named and none; streams join to the whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from tests.server.conftest import NewServer, Served, serve

from ridgeline.async_llm import AsyncLLM
from ridgeline.config.server import ServerConfig
from ridgeline.outputs import CompletionOutput, FinishReason
from ridgeline.server.tool_answers import ToolAnswers
from ridgeline.tools.definitions import parse_tool_choice
from ridgeline.tools.formats import TOOL_FORMATS

ADD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 9},
        "b": {"type": "integer", "minimum": 0, "maximum": 9},
        "note": {"const": '"} {"'},
    },
    "required": ["a", "b", "note"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADD}},
    {"type": "function", "function": {"name": "ping"}},
]
MESSAGES: Any = [{"role": "user", "content": "go"}]


TEMPLATE = "{% if tools %}T{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def tool_server(tiny_model: Path) -> Iterator[Served]:
    """The random model under a template that takes tools and spends few of its 256 tokens on them."""
    llm = AsyncLLM(str(tiny_model), num_threads=1, chat_template=TEMPLATE)
    yield from serve(llm, ServerConfig())


def asked(tool_server: Served, **fields: Any) -> dict[str, Any]:
    named = {"type": "function", "function": {"name": "add"}}
    return {
        "model": tool_server.state.served_model_names[0],
        "messages": MESSAGES,
        "tools": TOOLS[:1],
        "tool_choice": named,
        "temperature": 2,
        "seed": 5,
        "max_completion_tokens": 120,
        "parallel_tool_calls": False,
        **fields,
    }


def streamed(tool_server: Served, **fields: Any) -> tuple[str, list[list[str]], str | None]:
    """Content, [name, arguments] of each call, finish reason."""
    content, calls, reason = "", list[list[str]](), None
    for chunk in tool_server.client.chat.completions.create(**asked(tool_server, **fields), stream=True):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        for call in choice.delta.tool_calls or []:
            assert call.function is not None
            if call.function.name is not None:
                assert call.id
                assert call.index == len(calls)
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments or ""
        reason = choice.finish_reason or reason
    return content, calls, reason


def test_c19_a_named_tool_is_called_streamed_as_whole(tool_server: Served) -> None:
    choice = tool_server.client.chat.completions.create(**asked(tool_server)).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or []
    assert (call.type, call.function.name) == ("function", "add")
    jsonschema.validate(json.loads(call.function.arguments), ADD)
    assert streamed(tool_server) == ("", [["add", call.function.arguments]], "tool_calls")
    tool_server.assert_idle()


def test_c19_a_tool_without_parameters_gets_an_empty_object(tool_server: Served) -> None:
    fields = {"tools": TOOLS[1:], "tool_choice": "required"}
    assert streamed(tool_server, **fields) == ("", [["ping", "{}"]], "tool_calls")


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("hermes", '<tool_call>\n{"name": "add", "arguments": '),
        ("llama3_json", '{"name": "add", "parameters": '),
        ("json", '{"name": "add", "arguments": '),
    ],
)
def test_the_format_is_the_one_that_the_operator_names(new_server: NewServer, name: str, begin: str) -> None:
    server = new_server(ServerConfig(tool_call_parser=name), chat_template=TEMPLATE)
    fields = asked(server, extra_body={"return_token_ids": True})
    choice = server.client.chat.completions.create(**fields).choices[0]
    (call,) = choice.message.tool_calls or []
    jsonschema.validate(json.loads(call.function.arguments), ADD)
    token_ids = choice.model_extra["token_ids"] if choice.model_extra else []
    assert server.llm.tokenizer.decode(token_ids).startswith(begin)


def test_an_unknown_parser_is_refused_in_one_line(tiny_model: Path) -> None:
    command = [sys.executable, "-m", "ridgeline", "serve", str(tiny_model), "--tool-call-parser", "mistral"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert "tool_call_parser='mistral'" in line
    assert "auto, hermes, llama3_json, json" in line


def test_c19_parallel_calls_are_told_apart(tool_server: Served) -> None:
    for seed in range(30):
        fields = {"tools": TOOLS[1:], "tool_choice": "required", "parallel_tool_calls": True, "seed": seed}
        _, calls, reason = streamed(tool_server, max_completion_tokens=220, **fields)
        if len(calls) > 1 and reason == "tool_calls":
            assert calls == [["ping", "{}"]] * len(calls)
            whole = tool_server.client.chat.completions.create(
                **asked(tool_server, max_completion_tokens=220, **fields)
            ).choices[0]
            ids = [call.id for call in whole.message.tool_calls or []]
            assert len(set(ids)) == len(calls)
            return
    raise AssertionError("no seed gave two calls")


@pytest.mark.parametrize("num_pieces", [1, 7])
def test_a_free_answer_calls_once_where_calls_may_not_be_parallel(num_pieces: int) -> None:
    call = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
    text = f"First. {call} Then. {call} Done."
    answers = ToolAnswers(parse_tool_choice(TOOLS, "auto", False), TOOL_FORMATS["hermes"])
    size = len(text) // num_pieces
    pieces = [text[i * size : (i + 1) * size if i < num_pieces - 1 else None] for i in range(num_pieces)]
    content, calls = "", list[Any]()
    for piece in pieces:
        is_last = piece is pieces[-1]
        completion = CompletionOutput(0, piece, [], finish_reason=FinishReason.STOP if is_last else None)
        message: Any = answers.delta(completion)
        content += message.get("content", "")
        calls += message.get("tool_calls", [])
    (called,) = calls
    assert called["function"] == {"name": "ping", "arguments": "{}"}
    assert content == "First.  Then.  Done."
    assert answers.finish_reason(completion) == "tool_calls"


def test_c19_a_cut_call_says_length_and_stays_as_it_is(tool_server: Served) -> None:
    whole = streamed(tool_server)[1][0][1]
    for limit in range(30, 60):
        _, calls, reason = streamed(tool_server, max_completion_tokens=limit)
        if reason == "length" and calls:
            assert whole.startswith(calls[0][1])
            return
    raise AssertionError("no limit cut the call")


REPLY: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
AS_REPLY = {"type": "json_schema", "json_schema": {"name": "reply", "schema": REPLY}}


def test_a_call_that_must_be_made_goes_before_the_form_of_an_answer(tool_server: Served) -> None:
    fields = asked(tool_server, response_format=AS_REPLY)
    choice = tool_server.client.chat.completions.create(**fields).choices[0]
    (call,) = choice.message.tool_calls or []
    jsonschema.validate(json.loads(call.function.arguments), ADD)
    assert choice.message.content is None


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", list(TOOL_FORMATS))
def test_where_the_model_chooses_it_calls_or_answers_in_the_form(
    new_server: NewServer, name: str, *, strict: bool
) -> None:
    server = new_server(ServerConfig(tool_call_parser=name), chat_template=TEMPLATE)
    tool = {"type": "function", "function": {"name": "add", "parameters": ADD, "strict": strict}}

    def message(avoided: str) -> Any:
        """What is said by a model that likes no token with one of these characters."""
        tokenizer = server.llm.tokenizer
        texts = {i: tokenizer.token_text(i) for i in range(tokenizer.vocab_size)}
        bias = {str(i): -100 for i, text in texts.items() if set(text) & set(avoided)}
        fields = asked(server, tools=[tool], tool_choice="auto", response_format=AS_REPLY, logit_bias=bias)
        return server.client.chat.completions.create(**fields).choices[0].message

    # A call begins with `<` or `{"n`, a reply with `{"o`.
    called, replied = message("o{"), message("<n")
    assert called.content is None
    jsonschema.validate(json.loads(called.tool_calls[0].function.arguments), ADD)
    assert replied.tool_calls is None
    jsonschema.validate(json.loads(replied.content), REPLY)
    server.assert_idle()


def test_arguments_are_those_of_the_schema_and_no_others(tool_server: Served) -> None:
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": digit}}}
    named = {"type": "function", "function": {"name": "f"}}
    for seed in range(6):
        fields = asked(
            tool_server, tools=[{"type": "function", "function": function}], tool_choice=named, seed=seed
        )
        (call,) = tool_server.client.chat.completions.create(**fields).choices[0].message.tool_calls or []
        assert set(json.loads(call.function.arguments)) <= {"a"}


def test_none_calls_nothing(tool_server: Served) -> None:
    choice = tool_server.client.chat.completions.create(
        **asked(tool_server, tool_choice="none", max_completion_tokens=8)
    ).choices[0]
    assert choice.message.tool_calls is None
    assert isinstance(choice.message.content, str)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "mul"}}}, "tool_choice"),
        (
            {"tools": [{"type": "function", "function": {"name": "add", "parameters": {"not": {}}}}]},
            "tools[0].function.parameters",
        ),
        ({"extra_body": {"structured_outputs": {"regex": "a"}}}, "structured_outputs"),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_refusal_names_the_field(tool_server: Served, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        tool_server.client.chat.completions.create(**asked(tool_server, **fields))
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["param"] == param
    tool_server.assert_idle()
