"""Anthropic's dialect: messages and their count of tokens, as Claude Code uses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from ostinatod.api.body import checked_request, model_name, parse_object
from ostinatod.api.dialects.anthropic_answer import AnthropicAnswer
from ostinatod.api.dialects.anthropic_request import chat_fields
from ostinatod.api.limits import check_limits
from ostinatod.api.observer import Exchanges
from ostinatod.api.openai import CHAT_PATH, COUNT_PATH, resolve_model
from ostinatod.api.relay import EngineRelay
from ostinatod.api.state import Services, ServicesDep
from ostinatod.api.token_count import CountAnswer

router = APIRouter(prefix="/v1/messages")

STREAM_FIGURES: dict[str, Any] = {"stream_options": {"include_usage": True}, "return_progress": True}
"""Makes the engine tell how much of the prompt it reuses before it begins to read the rest."""


@router.post("")
async def messages(request: Request, services: ServicesDep) -> Response:
    """The next message of a conversation, streamed or whole."""
    chat = await _chat(request, services)
    if chat.get("stream") is True:
        chat |= STREAM_FIGURES
    calls = services.sampled_calls
    wanted = checked_request(calls.restored(chat), None, sees_images=services.sees_images)
    record = await resolve_model(services, wanted.model, embeds=False)
    return EngineRelay(
        *(services.loaded, services.exchanges, record, wanted, CHAT_PATH, "messages"),
        dialect="anthropic",
        answer=AnthropicAnswer(wanted.model, _continued(chat)),
        sampled_calls=calls,
    )


@router.post("/count_tokens")
async def count_tokens(request: Request, services: ServicesDep) -> Response:
    """How many tokens the prompt of such a message would have."""
    chat = await _chat(request, services)
    wanted = checked_request({**chat, "stream": False}, None, sees_images=services.sees_images)
    record = await resolve_model(services, wanted.model, embeds=False)
    return EngineRelay(
        *(services.loaded, Exchanges(), record, wanted, COUNT_PATH, "messages"),
        dialect="anthropic",
        answer=CountAnswer({}),
    )


def _continued(chat: Mapping[str, Any]) -> str:
    last = chat["messages"][-1] if chat["messages"] else {}
    return str(last["content"]) if last.get("role") == "assistant" else ""


async def _chat(request: Request, services: Services) -> dict[str, Any]:
    fields = parse_object(await request.body())
    check_limits(fields)
    model_name(fields)
    return chat_fields(fields)
