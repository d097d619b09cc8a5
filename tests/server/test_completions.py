"""/v1/completions over a real socket: answers, streams, limits and faults."""

from __future__ import annotations

import gzip
import json

import httpx
import pytest
from tests.server.conftest import NewServer, Served

from ridgeline.config.server import ServerConfig
from ridgeline.llm import LLM
from ridgeline.sampling_params import SamplingParams
from ridgeline.server import sampling_fields
from ridgeline.server.completions import CompletionForm


def events(response: httpx.Response) -> list[dict[str, object]]:
    """The JSON of each event; the stream ends with its mark."""
    assert response.headers["content-type"].startswith("text/event-stream")
    parts = response.text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    assert all(part.startswith("data: ") for part in parts[:-1])
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def post(server: Served, path: str, **body: object) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


def test_an_answer_equals_the_offline_engines(tiny_server: Served, tiny_model: object) -> None:
    params = SamplingParams(max_tokens=12, temperature=0.8, seed=5, logprobs=2, ignore_eos=True)
    with LLM(str(tiny_model), num_threads=1) as llm:
        (expected,) = llm.generate(["Hello"], params, progress=False)
    answer = tiny_server.client.completions.create(
        model="tiny-llama",
        prompt="Hello",
        max_tokens=12,
        temperature=0.8,
        seed=5,
        logprobs=2,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    (choice,), (completion,) = answer.choices, expected.outputs
    assert choice.text == completion.text
    assert choice.model_extra["token_ids"] == completion.token_ids
    assert choice.model_extra["prompt_token_ids"] == expected.prompt_token_ids
    assert choice.finish_reason == "length"
    assert completion.logprobs is not None
    assert choice.logprobs.token_logprobs == [
        position[i].logprob for i, position in zip(completion.token_ids, completion.logprobs, strict=True)
    ]
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == 12
    tiny_server.assert_idle()


def test_a_stream_joins_to_the_whole_answer(tiny_server: Served) -> None:
    body = {"prompt": ["one", "two"], "n": 2, "max_tokens": 9, "seed": 3, "echo": True}
    whole = post(tiny_server, "/v1/completions", **body).json()
    streamed = events(post(tiny_server, "/v1/completions", **body, stream=True))
    texts, reasons = [""] * 4, [None] * 4
    for event in streamed:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"]
        assert "usage" not in event
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert reasons == [choice["finish_reason"] for choice in whole["choices"]]
    assert [text[:3] for text in texts] == ["one", "one", "two", "two"]
    assert len({event["id"] for event in streamed}) == 1


def test_n_tokens_come_in_n_chunks_and_usage_counts_them(tiny_server: Served) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 20, "ignore_eos": True, "temperature": 0, "stream": True}
    options = {"include_usage": True}
    *chunks, usage = events(post(tiny_server, "/v1/completions", **body, stream_options=options))
    assert sum(len(chunk["choices"]) for chunk in chunks) <= 20
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 20,
        "total_tokens": 23,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_continuous_usage_grows_with_the_chunks(tiny_server: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": [5, 6], "max_tokens": 6, "ignore_eos": True, "stream": True, "stream_options": options}
    counts = [e["usage"]["completion_tokens"] for e in events(post(tiny_server, "/v1/completions", **body))]
    assert counts == sorted(counts)
    assert counts[-1] == 6


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["ok", ""]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [10**18]}, "prompt"),
        ({"prompt": [-(10**40)]}, "prompt"),
        ({"stop_token_ids": [10**18]}, "stop_token_ids"),
        ({"n": 10**18}, "n"),
        ({"min_tokens": 10**18}, "min_tokens"),
        ({"prompt": [5] * 300}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"n": 0}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "x"}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"logit_bias": {"49152": 5}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1e9}}, "logit_bias"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"5": None}}, "logit_bias"),
        ({"seed": 2**64}, "seed"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"timeout": -1}, "timeout"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ],
)
def test_a_bad_field_is_named(tiny_server: Served, fields: dict[str, object], param: str) -> None:
    response = post(tiny_server, "/v1/completions", **{"prompt": "hi", **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    tiny_server.assert_idle()


def test_an_answer_holds_a_bounded_number_of_its_prompts_logprobs(
    tiny_server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_fields, "MAX_PROMPT_LOGPROBS", 100)
    body = {"prompt": [[5] * 6, [7] * 4], "prompt_logprobs": 4, "max_tokens": 1}
    assert post(tiny_server, "/v1/completions", **body, n=2).status_code == 200
    for stream in (False, True):
        response = post(tiny_server, "/v1/completions", **body, n=3, stream=stream)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "prompt_logprobs"
    tiny_server.assert_idle()


def test_a_server_may_give_more_logprobs(new_server: NewServer) -> None:
    server = new_server(config=ServerConfig(max_logprobs=-1))
    response = post(server, "/v1/completions", prompt="hi", max_tokens=1, logprobs=-1)
    assert len(response.json()["choices"][0]["logprobs"]["top_logprobs"][0]) > 20


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b'{"prompt', b"[]", b"null", b'"x"', b"\xff", b'{"prompt": NaN}', b'{"prompt": -Infinity}'),
        *(b"[" * 20000, b'{"a":' * 100_000, b'{"prompt": "a\x01b"}', b'{"prompt": "a"} {}'),
        *(
            b'{"prompt": "\\ud800"}',
            b'{"\\udfff": 1}',
            b'{"prompt": "\xc0\x80"}',
            b'\xef\xbb\xbf{"prompt": "a"}',
        ),
        *(b'{"prompt": [' + b"9" * 5000 + b"]}", b'{"prompt": "a", "temperature": 1e999}'),
        *(gzip.compress(b'{"prompt": "a"}'), '{"prompt": "a"}'.encode("utf-16"), b"prompt=a"),
    ],
)
def test_what_is_no_json_object_is_refused(tiny_server: Served, body: bytes) -> None:
    response = httpx.post(f"{tiny_server.url}/v1/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "body"


def test_an_unknown_model_is_not_found(tiny_server: Served) -> None:
    response = post(tiny_server, "/v1/completions", prompt="hi", model="nope")
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "tiny-llama" in error["message"]


def test_unknown_fields_are_listed_and_known_ones_are_not(tiny_server: Served) -> None:
    response = post(tiny_server, "/v1/completions", prompt="hi", best_off=1, user="u", store=True)
    assert response.status_code == 200
    assert response.headers["x-ridgeline-warning"] == "ignored unknown fields: best_off"


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_of_no_further_token_scores_the_prompt(tiny_server: Served, stream: bool) -> None:
    body = {"prompt": ["Hello you", [5, 6, 7]], "echo": True, "max_tokens": 0, "logprobs": 1, "n": 2}
    scored = post(tiny_server, "/v1/completions", **{**body, "max_tokens": 1}).json()
    response = post(tiny_server, "/v1/completions", **body, stream=stream)
    events_or_one = events(response) if stream else [response.json()]
    choices = sorted((c for e in events_or_one for c in e["choices"]), key=lambda c: c["index"])
    assert [c["index"] for c in choices] == [0, 1, 2, 3]
    assert choices[0]["text"] == choices[1]["text"] == "Hello you"
    for choice, longer in zip(choices, scored["choices"], strict=True):
        num_tokens = len(choice["logprobs"]["tokens"])
        assert choice["logprobs"]["token_logprobs"] == longer["logprobs"]["token_logprobs"][:-1]
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert num_tokens == len(longer["logprobs"]["tokens"]) - 1
    if not stream:
        assert response.json()["usage"]["completion_tokens"] == 0
    tiny_server.assert_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_our_own_fault_is_told_and_the_next_request_is_served(
    new_server: NewServer, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    server = new_server()

    def failing(_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(server.llm.parts.engine, "execute", failing)
        response = post(server, "/v1/completions", prompt="hi", stream=stream)
    body = events(response)[-1] if stream else response.json()
    assert response.status_code == (200 if stream else 500)
    assert (body["error"]["type"], body["error"]["code"]) == ("server_error", "engine_error")
    server.assert_idle()
    assert post(server, "/v1/completions", prompt="hi").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_bug_of_ours_keeps_the_shape(
    new_server: NewServer, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    server = new_server()

    def failing(*_: object) -> None:
        raise ZeroDivisionError("secret")

    for method in ("whole", "events"):
        monkeypatch.setattr(CompletionForm, method, failing)
    response = post(server, "/v1/completions", prompt="hi", stream=stream)
    body = events(response)[-1] if stream else response.json()
    assert response.status_code == (200 if stream else 500)
    assert body["error"] == {"message": "internal error", "type": "server_error", "param": None, "code": None}
    server.assert_idle()


def test_the_token_that_stands_there_is_among_the_top_ones(tiny_server: Served) -> None:
    body = {"prompt": "hi", "max_tokens": 12, "ignore_eos": True, "temperature": 2, "seed": 1, "logprobs": 1}
    logprobs = post(tiny_server, "/v1/completions", **body).json()["choices"][0]["logprobs"]
    for token, logprob, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert 1 <= len(top) <= 2
        assert max(top.values()) >= top[token] >= logprob


def test_a_continuous_usage_begins_with_the_prompt(tiny_server: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    messages = [{"role": "user", "content": "Hi"}]
    body = {"messages": messages, "max_tokens": 3, "stream": True, "stream_options": options}
    chunks = events(post(tiny_server, "/v1/chat/completions", **body))
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {chunks[-1]["usage"]["prompt_tokens"]}
    assert chunks[0]["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": -(10**40)},
        {"priority": 10**18},
        {"top_k": 10**30},
        {"stop": [], "stop_token_ids": []},
        {"logit_bias": {}},
    ],
)
def test_what_is_only_large_or_empty_is_served(tiny_server: Served, fields: dict[str, object]) -> None:
    assert post(tiny_server, "/v1/completions", prompt="hi", max_tokens=2, **fields).status_code == 200
    tiny_server.assert_idle()


def test_of_a_key_that_comes_twice_the_last_counts(tiny_server: Served) -> None:
    body = b'{"prompt": 5, "max_tokens": 0, "prompt": "hi", "max_tokens": 2, "ignore_eos": true}'
    response = httpx.post(f"{tiny_server.url}/v1/completions", content=body)
    assert response.json()["usage"]["completion_tokens"] == 2
