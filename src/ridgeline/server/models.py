"""GET /v1/models, and the endpoints that this server refuses by name."""

from __future__ import annotations

from fastapi import APIRouter

from ridgeline.engine.clock import wall_time_s
from ridgeline.errors import RequestError
from ridgeline.server.call import loaded_llm
from ridgeline.server.generation import served_model
from ridgeline.server.state import ServerState


def models_router(state: ServerState) -> APIRouter:
    """What is served, and under which names."""
    router = APIRouter(tags=["models"])
    created = int(wall_time_s())

    def card(name: str) -> dict[str, object]:
        parts = loaded_llm(state).parts
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "ridgeline",
            "root": parts.model_name,
            "parent": None,
            "max_model_len": parts.limits.max_model_len,
            "permission": [],
        }

    @router.get("/v1/models")
    async def list_models() -> dict[str, object]:
        """All names of the model."""
        return {"object": "list", "data": [card(name) for name in state.served_model_names]}

    @router.get("/v1/models/{model:path}")
    async def show_model(model: str) -> dict[str, object]:
        """One name of the model."""
        return card(served_model(state, model))

    @router.post("/v1/embeddings")
    async def refuse_embeddings() -> None:
        """Refused: the server has no embedding model."""
        raise RequestError("model", "embeddings", "this server generates text; it has no embedding model")

    return router
