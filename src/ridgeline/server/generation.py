"""The way of a generating request: body, place in the queue, tokens, engine, answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.async_llm import new_request_id
from ridgeline.engine.async_engine import Submission
from ridgeline.engine.input_processor import ParsedPrompt
from ridgeline.errors import RequestError, RidgelineError
from ridgeline.metrics.spans import TracedCall
from ridgeline.outputs import RequestOutput
from ridgeline.sampling_params import SamplingParams
from ridgeline.server.call import (
    Call,
    ClientGoneError,
    facts_of,
    gone_response,
    loaded_llm,
    while_connected,
)
from ridgeline.server.chat import CHAT_EXAMPLE, ChatForm, ChatRequest
from ridgeline.server.completions import COMPLETION_EXAMPLE, CompletionForm, CompletionRequest
from ridgeline.server.deadlines import HEADER, request_timeout_s
from ridgeline.server.errors import UnknownModelError, rejection_reason
from ridgeline.server.event_stream import DONE, EventStream, StreamForm
from ridgeline.server.json_body import Body, parse_body, warning_headers
from ridgeline.server.response_form import ResponseForm
from ridgeline.server.responses import RESPONSES_EXAMPLE, ResponsesRequest
from ridgeline.server.sampling_fields import check_logprobs, check_prompt_logprobs, check_stream_options
from ridgeline.server.state import ServerState

_LARGE_BODY_BYTES = 16_384


Fields = CompletionRequest | ChatRequest | ResponsesRequest


class Form(StreamForm, Protocol):
    """Writes whole answers too."""

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        """The body of an answer that is not streamed."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What one generating endpoint does its own way."""

    path: str
    kind: type[CompletionRequest] | type[ChatRequest] | type[ResponsesRequest]
    id_prefix: str
    form: Callable[[Any, tuple[str, str], Sequence[Submission], ServerState], Form]
    example: dict[str, Any]
    end_mark: bytes = DONE
    operation: str = "chat"
    """`gen_ai.operation.name` of its spans."""


ENDPOINTS = (
    Endpoint(
        "/v1/completions",
        CompletionRequest,
        "cmpl",
        CompletionForm,
        COMPLETION_EXAMPLE,
        operation="text_completion",
    ),
    Endpoint("/v1/chat/completions", ChatRequest, "chatcmpl", ChatForm, CHAT_EXAMPLE),
    Endpoint("/v1/responses", ResponsesRequest, "resp", ResponseForm, RESPONSES_EXAMPLE, end_mark=b""),
)

_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream` its events, as they come",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
}


def generation_router(state: ServerState) -> APIRouter:
    """All generating endpoints."""
    router = APIRouter(tags=["generation"])
    for endpoint in ENDPOINTS:
        router.add_api_route(
            endpoint.path,
            _handler(state, endpoint),
            methods=["POST"],
            name=endpoint.path,
            response_model=None,
            responses=_ANSWERS,
            openapi_extra=body_schema(endpoint.kind, endpoint.example),
        )
    return router


def _handler(state: ServerState, endpoint: Endpoint) -> Callable[[Request], Any]:
    async def handle(request: Request) -> Response:
        arrived_at_s = state.clock.now()
        raw = await request.body()
        try:
            body = await read_body(state, raw, endpoint.kind)
            return await while_connected(
                request.receive, _answer(request, state, endpoint, body, arrived_at_s)
            )
        except ClientGoneError:
            return gone_response
        except RidgelineError as error:
            if (reason := rejection_reason(error)) is not None:
                state.metrics.rejected(reason)
            raise

    return handle


async def _answer(
    request: Request, state: ServerState, endpoint: Endpoint, body: Body, arrived_at_s: float
) -> Response:
    fields: Fields = body.fields
    llm = loaded_llm(state)
    model = served_model(state, fields.model)
    check_stream_options(fields)
    fields.check()
    params = fields.params(state)
    check_logprobs(fields, params, state.config.max_logprobs)
    timeout_s = request_timeout_s(request.headers.get(HEADER), fields.timeout, state.config)
    deadline_at_s = arrived_at_s + timeout_s if timeout_s is not None else None
    num_sequences, facts = params.n * fields.num_prompts, facts_of(request)
    trace = _traced(request, endpoint, model, params)
    call = Call(state, num_sequences, facts, form_field=fields.form_field, trace=trace)
    is_handed_on = False
    try:
        prompts = await llm.in_text_thread(fields.parse, state)
        if params.structured_outputs is not None:
            # Compiled here, where it holds up nobody, and found again when the request is opened.
            await llm.in_text_thread(llm.parts.input_processor.check_request, prompts[0], params)
        request_id = new_request_id(endpoint.id_prefix)
        submissions = _submissions(fields, prompts, params, request_id, (arrived_at_s, deadline_at_s))
        form = endpoint.form(fields, (request_id, model), submissions, state)
        headers = warning_headers(body.unknown)
        if not fields.stream:
            content = await _written(state, form, await call.whole(submissions))
            return Response(content, media_type="application/json", headers=headers)
        await call.start(submissions)
        is_handed_on = True
        return EventStream(call, form, headers, end_mark=endpoint.end_mark)
    except RequestError as error:
        raise fields.renamed(error) from None
    finally:
        if not is_handed_on:
            call.close()


def _traced(request: Request, endpoint: Endpoint, model: str, params: SamplingParams) -> TracedCall:
    return TracedCall(
        model=model,
        operation=endpoint.operation,
        traceparent=request.headers.get("traceparent"),
        temperature=params.temperature,
        top_p=params.top_p,
    )


async def _written(state: ServerState, form: Form, outputs: list[RequestOutput]) -> bytes:
    """The whole answer; one with logprobs may be megabytes and is written in a text thread."""
    if any(o.prompt_logprobs is not None or o.outputs[0].logprobs is not None for o in outputs):
        return await loaded_llm(state).in_text_thread(form.whole, outputs)
    return form.whole(outputs)


def _submissions(
    fields: Fields,
    prompts: Sequence[ParsedPrompt],
    params: SamplingParams,
    request_id: str,
    times: tuple[float, float | None],
) -> list[Submission]:
    """One for each prompt, under the id of the answer.

    Raises:
        RequestError: they ask for too many logprobs of the prompts.
    """
    check_prompt_logprobs(params, sum(len(prompt.token_ids) for prompt in prompts))
    arrived_at_s, deadline_at_s = times
    return [
        Submission(
            request_id if len(prompts) == 1 else f"{request_id}-{place}",
            replace(prompt, cache_salt=fields.cache_salt, priority=fields.priority or 0),
            params,
            arrived_at_s,
            deadline_at_s,
        )
        for place, prompt in enumerate(prompts)
    ]


async def read_body(state: ServerState, raw: bytes, kind: type[Any]) -> Body:
    """The typed body; a large one is decoded in a text thread."""
    if len(raw) < _LARGE_BODY_BYTES:
        return parse_body(raw, kind, strict=state.config.strict)
    return await loaded_llm(state).in_text_thread(parse_body, raw, kind, strict=state.config.strict)


def served_model(state: ServerState, name: str | None) -> str:
    """The name for the answer.

    Raises:
        UnknownModelError: `name` is none that is served.
    """
    names = state.served_model_names
    if name is not None and name not in names:
        raise UnknownModelError("model", name, f"is not served here; there is {', '.join(names)}")
    return name or names[0]


def body_schema(kind: type[msgspec.Struct], example: dict[str, Any]) -> dict[str, Any]:
    """The `requestBody` of an endpoint in the OpenAPI document."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    definitions = dict(components)
    inlined = definitions[kind.__name__] if "$ref" in schema else schema
    document = _inline(inlined, definitions)
    content = {"application/json": {"schema": document, "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        if "$ref" in node:
            return _inline(definitions[node["$ref"].rsplit("/", 1)[-1]], definitions)
        return {key: _inline(value, definitions) for key, value in node.items()}
    return [_inline(item, definitions) for item in node] if isinstance(node, list) else node
