"""What no registered model needs: downloads, and what is kept apart for models that are gone. Listed, and deleted.

Learned sets stay in the learning database, and counts in the routing log, which has a command of its own: a model that
is pulled again goes on with them. Its residency file is made again from the former.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ostinatod.api.state import Services
from ostinatod.errors import ModelError
from ostinatod.store.leftovers import Leftover, Leftovers


async def list_leftovers(services: Services) -> Leftovers:
    """What may go now. Raises ModelError where it cannot be read."""
    of_downloads = await asyncio.to_thread(services.store.leftovers, _in_use(services))
    return Leftovers((*of_downloads.entries, *await _of_gone_models(services)), of_downloads.in_progress)


async def delete_leftovers(services: Services, only: Collection[Path] | None) -> Leftovers:
    """Deletes what may go, of the paths `only` if they are given, and tells what went. Raises ModelError."""
    pruned = await asyncio.to_thread(services.store.prune, only, _in_use(services))
    gone = [left for left in await _of_gone_models(services) if only is None or left.path in only]
    for left in gone:
        await _delete(services, left)
    return Leftovers((*pruned.entries, *gone), pruned.in_progress)


def as_json(found: Leftovers, *, deleted: bool) -> dict[str, Any]:
    """The answer of the route."""
    entries = [
        {"kind": left.kind, "model": left.model, "path": str(left.path), "size_bytes": left.size_bytes}
        for left in found.entries
    ]
    total_bytes = sum(left.size_bytes for left in found.entries)
    return {"deleted": deleted, "entries": entries, "total_bytes": total_bytes, "in_progress": list(found.in_progress)}


def _in_use(services: Services) -> list[Path]:
    return [part for model in services.loaded.snapshot() for part in model.record.parts]


async def _delete(services: Services, left: Leftover) -> None:
    try:
        if left.kind == "prompts":
            await services.loaded.prompts.forget(left.model, [])
        else:
            await asyncio.to_thread(left.path.unlink, missing_ok=True)
    except OSError as error:
        raise ModelError(f"cannot delete {left.path}: {error}") from error


async def _of_gone_models(services: Services) -> list[Leftover]:
    known = {record.digest for record in await asyncio.to_thread(services.store.list)}
    known |= {model.record.digest for model in services.loaded.snapshot()}
    try:
        prompts = await services.loaded.prompts.saved()
        residencies = await asyncio.to_thread(_residencies, services)
    except OSError as error:
        raise ModelError(f"cannot read what is kept of models: {error}") from error
    found = [Leftover("prompts", folder.name, folder, size) for folder, size in prompts.items()] + residencies
    return sorted((left for left in found if left.model not in known), key=lambda left: str(left.path))


def _residencies(services: Services) -> list[Leftover]:
    files = services.residencies.generations.files()
    return [Leftover("residency", model, path, path.stat().st_size) for model, path in files.items()]
