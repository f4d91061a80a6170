"""OpenAI's Responses API without stored answers, as Codex uses it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ostinatod.api.dialects.responses_answer import ResponsesAnswer
from ostinatod.api.dialects.responses_request import chat_fields
from ostinatod.api.state import ServicesDep
from ostinatod.api.translated_chat import TranslatedChats, read_fields

router = APIRouter(prefix="/v1/responses")

_CHATS = TranslatedChats("responses", "input")


@router.post("")
async def responses(request: Request, services: ServicesDep) -> Response:
    """The next items of a conversation, streamed or whole."""
    fields = await read_fields(request)
    chat, names = chat_fields(fields)
    return await _CHATS.answered(services, chat, ResponsesAnswer(fields, names))


@router.post("/input_tokens")
async def input_tokens(request: Request, services: ServicesDep) -> Response:
    """How many tokens the prompt of such a response would have."""
    chat, _ = chat_fields(await read_fields(request))
    return await _CHATS.counted(services, chat, {"object": "response.input_tokens"})
