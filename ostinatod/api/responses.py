"""OpenAI's Responses API without stored answers, as Codex uses it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ostinatod.api.anthropic import STREAM_FIGURES
from ostinatod.api.body import checked_request, model_name, parse_object
from ostinatod.api.dialects.responses_answer import ResponsesAnswer
from ostinatod.api.dialects.responses_request import chat_fields
from ostinatod.api.limits import check_limits
from ostinatod.api.observer import Exchanges
from ostinatod.api.openai import CHAT_PATH, COUNT_PATH, resolve_model
from ostinatod.api.relay import EngineRelay
from ostinatod.api.state import ServicesDep
from ostinatod.api.token_count import CountAnswer

router = APIRouter(prefix="/v1/responses")


@router.post("")
async def responses(request: Request, services: ServicesDep) -> Response:
    """The next items of a conversation, streamed or whole."""
    fields = parse_object(await request.body())
    check_limits(fields)
    model_name(fields)
    chat, names = chat_fields(fields)
    if chat.get("stream") is True:
        chat |= STREAM_FIGURES
    calls = services.sampled_calls
    wanted = checked_request(calls.restored(chat), None, sees_images=services.sees_images)
    record = await resolve_model(services, wanted.model, embeds=False)
    return EngineRelay(
        *(services.loaded, services.exchanges, record, wanted, CHAT_PATH, "input"),
        dialect="responses",
        answer=ResponsesAnswer(fields, names),
        sampled_calls=calls,
    )


@router.post("/input_tokens")
async def input_tokens(request: Request, services: ServicesDep) -> Response:
    """How many tokens the prompt of such a response would have."""
    fields = parse_object(await request.body())
    check_limits(fields)
    model_name(fields)
    chat, _ = chat_fields({**fields, "stream": False})
    wanted = checked_request(chat, None, sees_images=services.sees_images)
    record = await resolve_model(services, wanted.model, embeds=False)
    answer = CountAnswer({"object": "response.input_tokens"})
    return EngineRelay(
        services.loaded, Exchanges(), record, wanted, COUNT_PATH, "input", dialect="responses", answer=answer
    )
