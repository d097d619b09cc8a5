"""Requests in the wire formats, made ready before the run."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import msgspec

from ridgeline.errors import ConfigError
from ridgeline.loadgen.client import PreparedRequest
from ridgeline.loadgen.settings import TargetSettings
from ridgeline.metrics.slo import parse_slos
from ridgeline.workload.load_request import LoadRequest

DEFAULT_OUTPUT_TOKENS = 128


def prepare_requests(
    requests: Sequence[LoadRequest], target: TargetSettings, *, model: str, ignore_eos: bool
) -> list[PreparedRequest]:
    """One prepared request each, with ids that no other run has.

    Raises:
        ConfigError: messages for a completions endpoint, token ids for a chat, an SLO of no known name.
    """
    run_id = uuid.uuid4().hex[:12]
    return [
        PreparedRequest(
            request_id=f"bench-{run_id}-{index}",
            body=msgspec.json.encode(_body(request, target, model=model, ignore_eos=ignore_eos)),
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            slos_s=parse_slos(f"{name}:{limit_ms}" for name, limit_ms in request.slos.items()),
        )
        for index, request in enumerate(requests)
    ]


def request_headers(target: TargetSettings, api_key: str | None) -> dict[str, str]:
    """What every request carries.

    Raises:
        ConfigError: a header that would not be one.
    """
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"
    headers |= {name.lower(): value for name, value in target.headers.items()}
    for name, value in headers.items():
        if not name or any(c in f"{name}{value}" for c in "\r\n\0") or any(c in name for c in " :"):
            raise ConfigError("header", name, "must be NAME=VALUE on one line")
    return headers


def _body(request: LoadRequest, target: TargetSettings, *, model: str, ignore_eos: bool) -> dict[str, object]:
    body: dict[str, object] = {"model": model, "stream": True}
    body |= _chat(request) if target.is_chat else _completion(request)
    max_tokens = request.num_output_tokens or DEFAULT_OUTPUT_TOKENS
    body["max_completion_tokens" if target.is_chat else "max_tokens"] = max_tokens
    if target.stream_usage != "none":
        options = {"include_usage": True}
        if target.stream_usage == "chunk":
            options["continuous_usage_stats"] = True
        body["stream_options"] = options
    if ignore_eos:
        body["ignore_eos"] = True
    return {**body, **request.extra, **target.extra_body}


def _chat(request: LoadRequest) -> dict[str, object]:
    if request.messages is not None:
        return {"messages": request.messages}
    if not isinstance(request.prompt, str):
        raise ConfigError("backend", "openai-chat", "takes no token ids; this dataset needs --backend openai")
    return {"messages": [{"role": "user", "content": request.prompt}]}


def _completion(request: LoadRequest) -> dict[str, object]:
    if request.prompt is None:
        raise ConfigError("backend", "openai", "takes no messages; this dataset needs --backend openai-chat")
    return {"prompt": request.prompt}
