"""Thousands of bodies, made from valid ones and from the OpenAPI document: no 5xx, nothing left behind."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from random import Random
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS, load_all_checks
from tests.server.conftest import Served
from tests.server.test_completions import post
from tests.server.test_disconnects import wait_until_idle

NUM_BODIES, NUM_CLIENTS = 5000, 4
NUM_DOCUMENT_BODIES = 60
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SAMPLING: dict[str, Any] = {
    "model": "tiny-llama",
    "max_tokens": 2,
    "n": 1,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 1,
    "stop": ["x"],
    "stop_token_ids": [5],
    "logit_bias": {"5": 1},
    "prompt_logprobs": 1,
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "priority": 1,
    "timeout": 100,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "min_tokens": 0,
    "cache_salt": "s",
    "return_token_ids": True,
    "structured_outputs": {"choice": ["a", "b"]},
}
VALID: dict[str, dict[str, Any]] = {
    "/v1/completions": {**SAMPLING, "prompt": "Hello", "logprobs": 1, "echo": True, "suffix": None},
    "/v1/chat/completions": {
        **SAMPLING,
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}],
        "max_completion_tokens": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "continue_final_message": True,
        "chat_template_kwargs": {"a": 1},
        "response_format": {"type": "json_object"},
        "tools": [TOOL],
        "tool_choice": "auto",
    },
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2, "stream": True, "temperature": 1},
    "/tokenize": {"prompt": "a", "messages": [], "add_special_tokens": True, "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2, 3]},
}
LIMITS = {"max_tokens", "max_completion_tokens", "max_output_tokens"}
REQUIRED = {"prompt", "messages", "input", "tokens"} | LIMITS
JUNK: list[Any] = [
    *(None, True, False, 0, -1, 1, 5, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.5, 1e300, 1e-12),
    *("", "a", "é🦙", "\u0000", "\ufffd<|im_end|>", "x" * 3000, [], [[]], [0], [-1], [10**9], ["", "a"]),
    *([None], [[1, 2], "a"], [1, "a"], {}, {"": ""}, {"type": "text"}, {"a": {"b": [1]}}, {"5": None}),
    *({"-1": 1}, [{"role": "user"}], [{}], [{"role": "tool", "content": "x"}]),
    [{"role": "user", "content": [{"type": "image_url"}]}],
]


def fuzzed(random: Random) -> tuple[str, bytes]:
    """A path and a body that was valid before some fields of it, or bytes, were changed."""
    path = random.choice(list(VALID))
    body = {k: deepcopy(v) for k, v in VALID[path].items() if k in REQUIRED or random.random() < 0.25}
    for _ in range(random.randrange(4)):
        place: Any = body
        while isinstance(place, dict | list) and place:
            key = random.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], dict | list) or random.random() < 0.7:
                break
            place = place[key]
        if not isinstance(place, dict | list) or not place:
            continue
        place[key] = deepcopy(random.choice(JUNK))
    for name in LIMITS & set(body):
        # An answer without a limit fills the context; few do, or this takes minutes.
        if body[name] in (None, 2**31, 2**63, 10**30) and random.random() < 0.9:
            body[name] = 2
    if random.random() < 0.1:
        body[random.choice(["x" * 200, "é", "\n", "modle", "functions"])] = random.choice(JUNK)
    raw = bytearray(json.dumps(body, ensure_ascii=random.random() < 0.5).encode())
    if random.random() < 0.15:
        for _ in range(random.randrange(1, 4)):
            raw[random.randrange(len(raw))] = random.randrange(256)
    return path, bytes(raw[: random.randrange(len(raw))] if random.random() < 0.05 else raw)


def send_many(port: int, seed: int, count: int) -> Counter[int]:
    """Statuses of so many bodies over one connection that is kept alive."""
    random, statuses = Random(seed), Counter[int]()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(count):
        path, body = fuzzed(random)
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        statuses[response.status] += 1
        assert response.status < 500, (path, body, text)
        if response.status != 200:
            assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}, (path, body, text)
        elif response.headers["content-type"].startswith("text/event-stream"):
            assert text.endswith("\n\n"), (path, body, text)
            assert '"server_error"' not in text, (path, body, text)
        else:
            json.loads(text)
    connection.close()
    return statuses


def test_no_body_breaks_the_server(tiny_server: Served) -> None:
    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        sent = [
            clients.submit(send_many, tiny_server.port, seed, NUM_BODIES // NUM_CLIENTS)
            for seed in range(NUM_CLIENTS)
        ]
        statuses = sum((client.result() for client in sent), Counter[int]())
    assert statuses.total() == NUM_BODIES
    # Bodies reach the engine and are refused, both often.
    assert statuses[200] > NUM_BODIES // 10
    assert statuses[400] > NUM_BODIES // 10
    wait_until_idle(tiny_server)
    tiny_server.assert_idle()
    assert post(tiny_server, "/v1/completions", prompt="good", max_tokens=2).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_bodies_of_the_openapi_document(tiny_server: Served, path: str) -> None:
    """Schemathesis makes bodies by the document, right and wrong ones."""
    document = httpx.get(f"{tiny_server.url}/openapi.json").json()
    # Limits that the document can't tell keep each answer short.
    for name in ("n", "max_tokens", "max_completion_tokens", "prompt_logprobs", "logprobs"):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        if name in body.get("properties", {}):
            body["properties"][name] = {"type": "integer", "minimum": -2, "maximum": 4}
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=tiny_server.url)
    load_all_checks()
    checks = CHECKS.get_by_names(
        ["not_a_server_error", "content_type_conformance", "response_schema_conformance"]
    )

    @given(case=schema[path]["POST"].as_strategy())
    @settings(
        max_examples=NUM_DOCUMENT_BODIES,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        response = case.call(timeout=60)
        assert response.status_code < 500, response.text
        case.validate_response(response, checks=checks)

    check()
    wait_until_idle(tiny_server)
    assert post(tiny_server, "/v1/completions", prompt="good", max_tokens=2).status_code == 200
