"""Conversations that came in another API's words and became a chat completion: answered, or their prompts counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from ostinatod.api.answer import Answer
from ostinatod.api.body import checked_request, model_name, parse_object
from ostinatod.api.limits import check_limits
from ostinatod.api.observer import Dialect, Exchanges
from ostinatod.api.openai import CHAT_PATH, COUNT_PATH, resolve_model
from ostinatod.api.relay import EngineRelay
from ostinatod.api.state import Services
from ostinatod.api.token_count import CountAnswer

_STREAM_FIGURES: Mapping[str, Any] = {"stream_options": {"include_usage": True}, "return_progress": True}
"""Makes the engine tell how much of the prompt it reuses before it begins to read the rest."""


async def read_fields(request: Request) -> dict[str, Any]:
    """The body in its own words. Raises RequestError where it is malformed, beyond the limits or names no model."""
    fields = parse_object(await request.body())
    check_limits(fields)
    model_name(fields)
    return fields


@dataclass(frozen=True, slots=True)
class TranslatedChats:
    """The chats of one dialect; `prompt_field` is what it calls the prompt."""

    dialect: Dialect
    prompt_field: str

    async def answered(self, services: Services, chat: Mapping[str, Any], answer: Answer) -> EngineRelay:
        """The engine's answer to a chat completion, said by `answer`. Raises RequestError."""
        fields = {**chat, **_STREAM_FIGURES} if chat.get("stream") is True else chat
        calls = services.sampled_calls
        wanted = checked_request(calls.restored(fields), None, sees_images=services.sees_images)
        record = await resolve_model(services, wanted.model, embeds=False)
        return EngineRelay(
            *(services.loaded, services.exchanges, record, wanted, CHAT_PATH, self.prompt_field),
            dialect=self.dialect,
            answer=answer,
            sampled_calls=calls,
        )

    async def counted(self, services: Services, chat: Mapping[str, Any], told: Mapping[str, Any]) -> EngineRelay:
        """How many tokens the prompt of a chat completion would have, beside what is `told`. Raises RequestError."""
        wanted = checked_request({**chat, "stream": False}, None, sees_images=services.sees_images)
        record = await resolve_model(services, wanted.model, embeds=False)
        return EngineRelay(
            *(services.loaded, Exchanges(), record, wanted, COUNT_PATH, self.prompt_field),
            dialect=self.dialect,
            answer=CountAnswer(told),
        )
