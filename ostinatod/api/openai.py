"""OpenAI's dialect: models, chat completions, completions, embeddings. The engine answers; see `relay`."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from ostinatod.api.answer import Answer, ChatAnswer
from ostinatod.api.body import parse_request
from ostinatod.api.describe import openai_model
from ostinatod.api.relay import EngineRelay
from ostinatod.api.state import Services, ServicesDep
from ostinatod.errors import RequestError
from ostinatod.store.records import ModelRecord

CHAT_PATH = "/v1/chat/completions"
"""The engine's path that every dialect's conversation goes to, and the one that counts its tokens."""
COUNT_PATH = "/v1/chat/completions/input_tokens"

router = APIRouter(prefix="/v1")


@router.get("/models")
async def list_models(services: ServicesDep) -> dict[str, Any]:
    """Every registered model; loading happens on demand."""
    records = await asyncio.to_thread(services.store.list)
    loaded = services.loaded
    return {
        "object": "list",
        "data": [openai_model(record, services.settings, loaded.find(record)) for record in records],
    }


@router.get("/models/{name:path}")
async def show_model(name: str, services: ServicesDep) -> dict[str, Any]:
    """One model."""
    record = await asyncio.to_thread(services.store.resolve, name)
    return openai_model(record, services.settings, services.loaded.find(record))


@router.post("/chat/completions")
async def chat_completions(request: Request, services: ServicesDep) -> Response:
    """A chat answer, streamed or whole."""
    return await _relay(request, services, prompt_field="messages", embeds=False, answer=ChatAnswer())


@router.post("/completions")
async def completions(request: Request, services: ServicesDep) -> Response:
    """A text completion, streamed or whole."""
    return await _relay(request, services, prompt_field="prompt", embeds=False)


@router.post("/embeddings")
async def embeddings(request: Request, services: ServicesDep) -> Response:
    """Embedding vectors."""
    return await _relay(request, services, prompt_field="input", embeds=True)


async def _relay(
    request: Request, services: Services, *, prompt_field: str, embeds: bool, answer: Answer | None = None
) -> Response:
    calls = services.sampled_calls
    wanted = parse_request(await request.body(), sees_images=services.sees_images, sampled_calls=calls)
    record = await resolve_model(services, wanted.model, embeds=embeds)
    return EngineRelay(
        *(services.loaded, services.exchanges, record, wanted, request.url.path, prompt_field),
        answer=answer,
        sampled_calls=calls,
    )


async def resolve_model(
    services: Services, name: str, *, embeds: bool, embeddings_path: str = "/v1/embeddings"
) -> ModelRecord:
    """The model of that name. Raises RequestError for the wrong kind, before minutes are spent on loading it."""
    record = await asyncio.to_thread(services.store.resolve, name)
    if record.shape.is_embedding and not embeds:
        raise RequestError(f"{record.name} is an embedding model", hint=f"Use it with {embeddings_path}")
    if embeds and not record.shape.is_embedding:
        raise RequestError(
            f"{record.name} does not make embeddings", hint="Pull an embedding model: ostinato pull ORG/REPO"
        )
    return record
