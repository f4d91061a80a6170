"""Anthropic's dialect: messages and their count of tokens, as Claude Code uses them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from ostinatod.api.dialects.anthropic_answer import AnthropicAnswer
from ostinatod.api.dialects.anthropic_request import chat_fields
from ostinatod.api.state import ServicesDep
from ostinatod.api.translated_chat import TranslatedChats, read_fields

router = APIRouter(prefix="/v1/messages")

_CHATS = TranslatedChats("anthropic", "messages")


@router.post("")
async def messages(request: Request, services: ServicesDep) -> Response:
    """The next message of a conversation, streamed or whole."""
    chat = chat_fields(await read_fields(request))
    return await _CHATS.answered(services, chat, AnthropicAnswer(chat["model"], _continued(chat)))


@router.post("/count_tokens")
async def count_tokens(request: Request, services: ServicesDep) -> Response:
    """How many tokens the prompt of such a message would have."""
    return await _CHATS.counted(services, chat_fields(await read_fields(request)), {})


def _continued(chat: Mapping[str, Any]) -> str:
    last = chat["messages"][-1] if chat["messages"] else {}
    return str(last["content"]) if last.get("role") == "assistant" else ""
