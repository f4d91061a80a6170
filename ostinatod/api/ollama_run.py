"""Ollama's answers: chat, generate, embed. Each becomes a request in OpenAI's words, and its answer comes back."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from fastapi import APIRouter
from pydantic import Field, field_validator
from starlette.responses import JSONResponse, Response

from ostinatod.api.answer import Answer
from ostinatod.api.body import parse_request
from ostinatod.api.describe import usable_context_tokens
from ostinatod.api.ollama_answers import OllamaAnswer, Shape, VectorsAnswer, model_line
from ostinatod.api.ollama_requests import (
    ChatRequest,
    GenerateRequest,
    ModelName,
    chat_fields,
    generate_fields,
)
from ostinatod.api.openai import resolve_model
from ostinatod.api.relay import EngineRelay
from ostinatod.api.state import Services, ServicesDep
from ostinatod.api.streaming import NdjsonResponse
from ostinatod.config import parse_duration_s
from ostinatod.store.records import ModelRecord

_CHAT = "/v1/chat/completions"
_COMPLETION = "/v1/completions"
_EMBEDDINGS = "/v1/embeddings"

MAX_EMBEDDING_INPUTS = 2048

EMBED_PATH = "/api/embed"

router = APIRouter()


class EmbedRequest(ModelName):
    """`POST /api/embed`. Inputs are never shortened, whatever `truncate` says: one that is too long is an error."""

    input: str | list[str]
    dimensions: int | None = Field(None, ge=1)
    keep_alive: float | str | None = None

    @field_validator("input")
    @classmethod
    def _bounded(cls, value: str | list[str]) -> str | list[str]:
        if len(value) > MAX_EMBEDDING_INPUTS and isinstance(value, list):
            raise ValueError(f"expected at most {MAX_EMBEDDING_INPUTS} inputs, found {len(value)}")
        return value


class EmbeddingsRequest(ModelName):
    """`POST /api/embeddings`, the older form with one input."""

    prompt: str = ""
    keep_alive: float | str | None = None


@router.post("/api/chat")
async def chat(wanted: ChatRequest, services: ServicesDep) -> Response:
    """The next message of a conversation."""
    record = await resolve_model(services, wanted.model, embeds=False, embeddings_path=EMBED_PATH)
    if not wanted.messages:
        return await _load_or_unload(services, record, wanted, "chat")
    fields = chat_fields(wanted, _context(services, record))
    return _answer(services, record, fields, _CHAT, "chat")


@router.post("/api/generate")
async def generate(wanted: GenerateRequest, services: ServicesDep) -> Response:
    """The answer to one prompt, behind the model's chat template unless it is `raw` or the model has none."""
    record = await resolve_model(services, wanted.model, embeds=False, embeddings_path=EMBED_PATH)
    if not wanted.prompt:
        return await _load_or_unload(services, record, wanted, "generate")
    as_chat = record.shape.has_chat_template and not wanted.raw
    fields = generate_fields(wanted, _context(services, record), as_chat=as_chat)
    return _answer(services, record, fields, _CHAT if as_chat else _COMPLETION, "generate")


@router.post("/api/embed")
async def embed(wanted: EmbedRequest, services: ServicesDep) -> Response:
    """One vector per input."""
    record = await resolve_model(services, wanted.model, embeds=True, embeddings_path=EMBED_PATH)
    if wanted.input in ("", []):
        await services.loaded.load(record, lambda _: None, keep_alive_s=_keep_alive_s(wanted.keep_alive))
        return JSONResponse({"model": wanted.model, "embeddings": []})
    answer = VectorsAnswer(wanted.model, dimensions=wanted.dimensions)
    return _embeddings(services, record, wanted, wanted.input, answer)


@router.post("/api/embeddings")
async def embeddings(wanted: EmbeddingsRequest, services: ServicesDep) -> Response:
    """One vector."""
    record = await resolve_model(services, wanted.model, embeds=True, embeddings_path=EMBED_PATH)
    if not wanted.prompt:
        await services.loaded.load(record, lambda _: None, keep_alive_s=_keep_alive_s(wanted.keep_alive))
        return JSONResponse({"embedding": []})
    return _embeddings(services, record, wanted, wanted.prompt, VectorsAnswer(wanted.model, single=True))


def _answer(services: Services, record: ModelRecord, fields: Mapping[str, Any], path: str, shape: Shape) -> Response:
    prompt_field = "messages" if path == _CHAT else "prompt"
    return _relay(services, record, fields, path, prompt_field, OllamaAnswer(str(fields["model"]), shape))


def _embeddings(
    services: Services,
    record: ModelRecord,
    wanted: EmbedRequest | EmbeddingsRequest,
    text: str | list[str],
    answer: VectorsAnswer,
) -> Response:
    keep_alive = {} if wanted.keep_alive is None else {"keep_alive": wanted.keep_alive}
    fields = {"model": wanted.model, "input": text, **keep_alive}
    return _relay(services, record, fields, _EMBEDDINGS, "input", answer)


def _relay(
    services: Services,
    record: ModelRecord,
    fields: Mapping[str, Any],
    path: str,
    prompt_field: str,
    answer: Answer,
) -> EngineRelay:
    calls = services.sampled_calls
    # Written out and read again, so that what JSON has no word for is treated as in every other dialect.
    request = parse_request(json.dumps(fields).encode(), sees_images=services.sees_images, sampled_calls=calls)
    return EngineRelay(
        *(services.loaded, services.exchanges, record, request, path, prompt_field),
        dialect="ollama",
        answer=answer,
        sampled_calls=calls,
    )


async def _load_or_unload(
    services: Services, record: ModelRecord, wanted: ChatRequest | GenerateRequest, shape: Shape
) -> Response:
    keep_alive_s = _keep_alive_s(wanted.keep_alive)

    async def act() -> dict[str, Any]:
        if keep_alive_s == 0:
            await services.loaded.unload(record)
            return model_line(wanted.model, shape, "unload")
        await services.loaded.load(record, lambda _: None, keep_alive_s=keep_alive_s)
        return model_line(wanted.model, shape, "load")

    async def line() -> AsyncGenerator[Mapping[str, Any], None]:
        yield await act()

    return NdjsonResponse(line()) if wanted.stream else JSONResponse(await act())


def _keep_alive_s(keep_alive: float | str | None) -> float | None:
    return None if keep_alive is None else parse_duration_s(keep_alive)


def _context(services: Services, record: ModelRecord) -> int:
    return usable_context_tokens(record, services.settings, services.loaded.find(record))
