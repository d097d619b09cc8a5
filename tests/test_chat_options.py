"""How LLM and AsyncLLM write a conversation out: open turns, continued messages, tools, further names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ridgeline import LLM, AsyncLLM, RequestError, SamplingParams
from ridgeline.engine.conversation import TemplateOptions, chat_ids
from ridgeline.formats.gguf import open_gguf
from ridgeline.tokenizer.gguf_tokenizer import build_tokenizer

TEMPLATE = (
    "{{ style }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TOOL_TEMPLATE = "{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}" + TEMPLATE
ONE = SamplingParams(max_tokens=1)
QUESTION = {"role": "user", "content": "Hi"}
BEGUN = {"role": "assistant", "content": "The sky is"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

Prompt = Callable[..., str]


def of_llm(model: Path, template: str) -> Iterator[Prompt]:
    with LLM(str(model), chat_template=template, kv_cache_bytes=2**22) as llm:

        def prompt(messages: Any, **options: Any) -> str:
            whole = llm.chat(messages, ONE, **options)[0].prompt_token_ids
            assert next(llm.stream_chat(messages, ONE, **options)).prompt_token_ids == whole
            return llm.tokenizer.decode(whole)

        yield prompt
        assert llm.stats.num_used_blocks == 0


def of_async_llm(model: Path, template: str) -> Iterator[Prompt]:
    with closing(AsyncLLM(str(model), chat_template=template, kv_cache_bytes=2**22)) as llm:

        async def first(messages: Any, options: dict[str, Any]) -> list[int]:
            deltas = [delta async for delta in llm.chat(messages, ONE, **options)]
            return deltas[0].prompt_token_ids

        yield lambda messages, **options: llm.tokenizer.decode(asyncio.run(first(messages, options)))


@pytest.fixture(params=[of_llm, of_async_llm], ids=["LLM", "AsyncLLM"])
def prompt(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[Prompt]:
    """The prompt that a conversation becomes."""
    yield from request.param(tiny_model, TEMPLATE)


@pytest.fixture(params=[of_llm, of_async_llm], ids=["LLM", "AsyncLLM"])
def tool_prompt(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[Prompt]:
    """The same under a template that takes tools."""
    yield from request.param(tiny_model, TOOL_TEMPLATE)


def test_a_turn_is_opened_unless_the_last_message_goes_on(prompt: Prompt) -> None:
    assert prompt([QUESTION]).endswith("[user]Hi[assistant]")
    assert prompt([QUESTION], add_generation_prompt=True).endswith("[user]Hi[assistant]")
    assert prompt([QUESTION], add_generation_prompt=False).endswith("[user]Hi")
    for closed in (None, False):
        told = prompt([QUESTION, BEGUN], continue_final_message=True, add_generation_prompt=closed)
        assert told.endswith("[user]Hi[assistant]The sky is")


def test_names_reach_the_template(prompt: Prompt) -> None:
    assert "curt[user]Hi" in prompt([QUESTION], chat_template_kwargs={"style": "curt"})


def test_tools_are_told_to_the_template(tool_prompt: Prompt) -> None:
    assert "<add>[user]Hi" in tool_prompt([QUESTION], tools=[TOOL])
    assert "<add>" not in tool_prompt([QUESTION], tools=[])


def test_a_template_without_tools_gets_a_system_block(tiny_model: Path) -> None:
    tokenizer = build_tokenizer(open_gguf(tiny_model).metadata, path=tiny_model, chat_template=TEMPLATE)
    ids = chat_ids(tokenizer, [QUESTION], options=TemplateOptions(), tools=[TOOL], model_name="tiny")
    told = tokenizer.decode(ids)
    assert "[system]You may call functions." in told
    assert '{"name": "add"' in told
    assert told.endswith("[user]Hi[assistant]")


def test_calls_and_results_are_written_as_over_http(prompt: Prompt) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
    ]
    told = prompt(messages)
    assert '{"name": "add", "arguments": {"a": 1}}' in told
    assert "[user]<tool_response>\n3\n</tool_response>" in told


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"style": object()}}, "chat_template_kwargs.style"),
        ({"chat_template_kwargs": ["style"]}, "chat_template_kwargs"),
        ({"tools": "add"}, "tools"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ],
)
def test_a_wrong_option_is_named(prompt: Prompt, options: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        prompt([QUESTION], **options)
    assert caught.value.field == field


@pytest.mark.parametrize("messages", [[], "hello", [5], [{"role": "user"}]])
def test_tools_make_no_conversation_of_none(prompt: Prompt, messages: object) -> None:
    with pytest.raises(RequestError) as caught:
        prompt(messages, tools=[TOOL])
    assert caught.value.field.startswith("messages")
