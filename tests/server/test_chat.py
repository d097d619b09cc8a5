"""/v1/chat/completions over a real socket."""

from __future__ import annotations

import pytest
from tests.server.conftest import NewServer, Served
from tests.server.test_completions import events, post

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_a_stream_has_role_text_reason_and_usage_in_this_order(tiny_server: Served) -> None:
    body = {"messages": MESSAGES, "max_tokens": 5, "ignore_eos": True, "seed": 1}
    whole = post(tiny_server, "/v1/chat/completions", **body).json()
    options = {"include_usage": True}
    chunks = events(post(tiny_server, "/v1/chat/completions", **body, stream=True, stream_options=options))
    first, *middle, last = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in middle)
    assert [chunk["choices"][0]["finish_reason"] for chunk in middle[:-1]] == [None] * (len(middle) - 1)
    assert middle[-1]["choices"][0]["finish_reason"] == "length"
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in middle)
    assert text == whole["choices"][0]["message"]["content"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 5
    assert {(c["id"], c["created"], c["model"], c["object"]) for c in chunks} == {
        (first["id"], first["created"], "tiny-llama", "chat.completion.chunk")
    }
    tiny_server.assert_idle()


def test_logprobs_have_one_entry_a_token(tiny_server: Served) -> None:
    answer = tiny_server.client.chat.completions.create(
        model="tiny-llama",
        messages=MESSAGES,
        max_tokens=24,
        logprobs=True,
        top_logprobs=2,
        stop=["Helloxxx"],
        seed=4,
    )
    (choice,) = answer.choices
    assert len(choice.logprobs.content) == answer.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
    ],
)
def test_a_bad_field_is_named(tiny_server: Served, fields: dict[str, object], param: str) -> None:
    response = post(tiny_server, "/v1/chat/completions", **{"messages": MESSAGES, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    tiny_server.assert_idle()


def test_empty_content_and_text_parts_are_fine(tiny_server: Served) -> None:
    for content in ("", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]):
        messages = [{"role": "user", "content": content}]
        response = post(tiny_server, "/v1/chat/completions", messages=messages, max_tokens=2)
        assert response.status_code == 200


def test_the_model_goes_on_with_a_message(tiny_server: Served) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "The sky is"}]
    body = {"messages": messages, "continue_final_message": True}
    tokens = post(tiny_server, "/tokenize", **body).json()["tokens"]
    text = post(tiny_server, "/detokenize", tokens=tokens).json()["prompt"]
    assert text.endswith("The sky is")
    answer = post(tiny_server, "/v1/chat/completions", **body, max_tokens=1, return_token_ids=True).json()
    assert answer["prompt_token_ids"] == tokens


def test_variables_reach_the_template(new_server: NewServer) -> None:
    server = new_server(chat_template="{{ style }}: {{ messages[0].content }}")
    body = {"messages": MESSAGES, "chat_template_kwargs": {"style": "curt"}}
    tokens = post(server, "/tokenize", **body).json()["tokens"]
    assert post(server, "/detokenize", tokens=tokens).json()["prompt"].endswith("curt: Hi")


def test_tokenize_counts_tools_too(new_server: NewServer) -> None:
    server = new_server(
        chat_template="{{ messages[0].content }}{% if tools %}{{ tools | tojson }}{% endif %}"
    )
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    plain = post(server, "/tokenize", messages=MESSAGES).json()["count"]
    body = {"messages": MESSAGES, "tools": tools}
    count = post(server, "/tokenize", **body).json()["count"]
    assert count > plain
    usage = post(server, "/v1/chat/completions", **body, max_tokens=1).json()["usage"]
    assert usage["prompt_tokens"] == count
