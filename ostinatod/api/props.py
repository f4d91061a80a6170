"""What clients of llama.cpp's own server look up before they chat: `GET /props`."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter

from ostinatod import __version__
from ostinatod.api.describe import usable_context_tokens
from ostinatod.api.state import Services, ServicesDep
from ostinatod.errors import RequestError
from ostinatod.store.records import ModelRecord

router = APIRouter()


@router.get("/props")
async def props(services: ServicesDep, model: str | None = None) -> dict[str, Any]:
    """The context, template and slots of a model; of the only one there is where none is named."""
    record = await asyncio.to_thread(services.store.resolve, model) if model else await _only_model(services)
    template = await asyncio.to_thread(services.store.chat_template, record)
    context = usable_context_tokens(record, services.settings, services.loaded.find(record))
    return {
        "default_generation_settings": {"n_ctx": context},
        "total_slots": services.settings.parallel,
        "model_alias": record.name,
        "chat_template": template,
        "modalities": {"vision": services.sees_images, "audio": False},
        "build_info": f"ostinato {__version__}",
    }


async def _only_model(services: Services) -> ModelRecord:
    """The only model in memory, else the only one registered. Raises RequestError where there are several."""
    loaded = [model.record for model in services.loaded.snapshot()]
    records = loaded or list(await asyncio.to_thread(services.store.list))
    if len(records) != 1:
        names = ", ".join(record.name for record in records) or "none"
        raise RequestError(f"expected the name of a model, found {names}", hint="Name one: GET /props?model=NAME")
    return records[0]
