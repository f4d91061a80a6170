"""What engines tell of themselves, for the daemon's own answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ostinatod.loaded import LoadedModel, LoadedModels


async def engine_statuses(loaded: LoadedModels, models: Sequence[LoadedModel]) -> list[Mapping[str, Any] | None]:
    """The status of the engine of each model; None where it does not tell, such as while it loads."""
    return await asyncio.gather(*(_status(loaded, model) for model in models))


async def _status(loaded: LoadedModels, model: LoadedModel) -> Mapping[str, Any] | None:
    client = loaded.engine_client(model.record)
    told = await client.get_json("/ostinato/status") if client else None
    return told if isinstance(told, dict) else None
