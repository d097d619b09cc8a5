"""Models, tokenisation, liveness, and paths that do not exist."""

from __future__ import annotations

import re

import httpx
from tests.server.conftest import Served
from tests.server.test_completions import post


def test_models_are_listed_and_shown(tiny_server: Served) -> None:
    client = tiny_server.client
    (model,) = client.models.list().data
    assert model.id == "tiny-llama"
    assert client.models.retrieve("tiny-llama").model_extra["max_model_len"] == 256
    response = httpx.get(f"{tiny_server.url}/v1/models/nope")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_text_becomes_ids_and_back(tiny_server: Served) -> None:
    answer = post(tiny_server, "/tokenize", prompt="Hello you", return_token_strs=True).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert post(tiny_server, "/detokenize", tokens=answer["tokens"]).json() == {"prompt": "Hello you"}


def test_control_tokens_count_in_prompts_and_not_in_messages(tiny_server: Served) -> None:
    end = tiny_server.llm.tokenizer.eos_token_id
    text = tiny_server.llm.tokenizer.token_text(end)
    raw = post(tiny_server, "/tokenize", prompt=text).json()
    assert (raw["tokens"], raw["parse_special"]) == ([end], True)
    plain = post(tiny_server, "/tokenize", messages=[{"role": "user", "content": "x"}]).json()
    typed = post(tiny_server, "/tokenize", messages=[{"role": "user", "content": text}]).json()
    assert typed["parse_special"] is False
    assert typed["tokens"].count(end) == plain["tokens"].count(end)


def test_liveness(tiny_server: Served) -> None:
    for path in ("/health", "/ping", "/ready", "/version"):
        assert httpx.get(tiny_server.url + path).status_code == 200


def test_each_answer_has_a_content_type_of_the_document(tiny_server: Served) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    bodies = {
        "/v1/completions": {"prompt": "a"},
        "/v1/chat/completions": chat,
        "/v1/responses": {"input": "a"},
    }
    with httpx.Client(base_url=tiny_server.url) as client:
        paths = client.get("/openapi.json").json()["paths"]
        answers = [client.get(path) for path in paths if "get" in paths[path] and "{" not in path]
        answers += [client.get("/metrics", headers={"accept": "application/openmetrics-text"})]
        answers += [client.get("/debug/requests/none"), client.get("/v1/models/nope")]
        for path, fields in bodies.items():
            answers += [client.post(path, json={**fields, "stream": stream}) for stream in (True, False)]
            answers += [client.post(path, json={**fields, "temperature": -1})]
    assert {answer.status_code for answer in answers} == {200, 400, 404}
    for answer in answers:
        (operation,) = [
            paths[path][answer.request.method.lower()]
            for path in paths
            if re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", path), answer.request.url.path)
        ]
        status = "200" if answer.status_code == 200 else "4XX"
        assert "422" not in operation["responses"]
        kind = answer.headers.get("content-type", "").partition(";")[0]
        assert (kind or None) in (operation["responses"][status].get("content") or [None])


def test_head_is_get_without_its_body(tiny_server: Served) -> None:
    with httpx.Client(base_url=tiny_server.url) as client:
        # One connection: a body would be read as the next answer.
        for path in ("/health", "/ready", "/version", "/v1/models", "/v1/models/tiny-llama", "/metrics"):
            head, get = client.head(path), client.get(path)
            assert (head.status_code, head.content) == (200, b"")
            assert get.status_code == 200
            assert head.headers.get("content-type") == get.headers.get("content-type")
            if path != "/metrics":
                assert head.headers["content-length"] == str(len(get.content))
        assert client.head("/v1/models/nope").status_code == 404
        refused = client.head("/v1/completions")
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


def test_what_does_not_exist_is_refused_in_the_same_shape(tiny_server: Served) -> None:
    for response, status in (
        (httpx.get(f"{tiny_server.url}/nope"), 404),
        (httpx.get(f"{tiny_server.url}/v1/models/../nope/"), 404),
        (httpx.post(f"{tiny_server.url}/v1/completions/"), 404),
        (httpx.get(f"{tiny_server.url}/v1/completions"), 405),
        (post(tiny_server, "/v1/embeddings", input="x"), 400),
        (post(tiny_server, "/tokenize"), 400),
        (post(tiny_server, "/detokenize", tokens=[10**6]), 400),
    ):
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
