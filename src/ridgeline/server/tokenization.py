"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ridgeline.async_llm import AsyncLLM
from ridgeline.errors import RequestError
from ridgeline.server.call import loaded_llm
from ridgeline.server.conversation import conversation_token_ids
from ridgeline.server.generation import body_schema, read_body, served_model
from ridgeline.server.json_body import Body, warning_headers
from ridgeline.server.state import ServerState
from ridgeline.tools.definitions import parse_tools


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of POST /tokenize: a raw `prompt`, or `messages` for the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of POST /detokenize."""

    tokens: list[int]
    model: str | None = None


def tokenization_router(state: ServerState) -> APIRouter:
    """Text to ids and back."""
    router = APIRouter(tags=["tokenization"])

    @router.post(
        "/tokenize",
        response_model=None,
        openapi_extra=body_schema(TokenizeRequest, {"prompt": "The capital of France is"}),
    )
    async def tokenize(request: Request) -> Response:
        """Ids of a prompt; `parse_special` tells whether control tokens in it count as such."""
        body = await read_body(state, await request.body(), TokenizeRequest)
        served_model(state, body.fields.model)
        llm = loaded_llm(state)
        return _answer(await llm.in_text_thread(_tokenized, body.fields, state), body)

    @router.post(
        "/detokenize",
        response_model=None,
        openapi_extra=body_schema(DetokenizeRequest, {"tokens": [504, 3575]}),
    )
    async def detokenize(request: Request) -> Response:
        """Text of ids, control tokens included."""
        body = await read_body(state, await request.body(), DetokenizeRequest)
        served_model(state, body.fields.model)
        llm = loaded_llm(state)
        return _answer({"prompt": await llm.in_text_thread(_decoded, body.fields.tokens, llm)}, body)

    return router


def _tokenized(fields: TokenizeRequest, state: ServerState) -> dict[str, object]:
    if (fields.prompt is None) == (fields.messages is None):
        raise RequestError("prompt", fields.prompt, "give either prompt or messages")
    llm = loaded_llm(state)
    tokenizer = llm.tokenizer
    if fields.messages is not None:
        tools = parse_tools(fields.tools) if fields.tools is not None else ()
        token_ids = conversation_token_ids(fields, tools, state)
    else:
        assert fields.prompt is not None
        has_special = fields.add_special_tokens is not False
        token_ids = (tokenizer.encode_prompt if has_special else tokenizer.encode)(fields.prompt)
    document: dict[str, object] = {
        "count": len(token_ids),
        "max_model_len": llm.parts.limits.max_model_len,
        "tokens": token_ids,
        "token_strs": None,
        "parse_special": fields.messages is None,
    }
    if fields.return_token_strs:
        document["token_strs"] = [tokenizer.token_text(token_id) for token_id in token_ids]
    return document


def _decoded(token_ids: list[int], llm: AsyncLLM) -> str:
    try:
        return llm.tokenizer.decode(token_ids)
    except RequestError as error:
        raise error.renamed("tokens") from None


def _answer(document: dict[str, object], body: Body) -> Response:
    content = msgspec.json.encode(document)
    return Response(content, media_type="application/json", headers=warning_headers(body.unknown))
