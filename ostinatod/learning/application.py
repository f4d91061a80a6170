"""Changing the set that an engine runs with: in place where the engine can, else by a restart while it is idle."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import httpx

from ostinatod.config import FOREVER_S
from ostinatod.errors import EngineDied, PlanUnavailable
from ostinatod.learning.generations import Generation, Generations
from ostinatod.loaded import LoadedModels
from ostinatod.profiles.residency import Residency
from ostinatod.store.records import ModelRecord

log = logging.getLogger(__name__)

_MUST_RESTART = 409
"""The engine's answer to a set that fits, but that it cannot change to while it runs."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A generation that is in use now, or from the next load on."""

    generation: int
    moved: int
    swap_ms: float | None
    """Time that the engine took to change in place; None where it was restarted, or was not loaded."""


async def apply_generation(
    loaded: LoadedModels,
    generations: Generations,
    record: ModelRecord,
    residency: Residency,
    generation: Generation,
    *,
    rolled_back: bool = False,
) -> Applied:
    """Make the set the one in use, and only then the active generation.

    rolled_back  the generation before did worse, rather than being superseded

    Raises PlanUnavailable with the engine's reason where it refuses the set, and as `LoadedModels.load` where it has to
    be restarted; the generation before stays active then. EngineDied where it does not answer.
    """
    fingerprint = residency.layout.fingerprint
    before = await asyncio.to_thread(generations.active, fingerprint)
    swapped: httpx.Response | None = None
    known = loaded.find(record)
    if known is not None and known.state == "loading":
        # With the set before; it takes the new one when it is ready.
        await loaded.load(record, lambda _: None)
    client = loaded.engine_client(record)
    if client is not None:
        candidate = await asyncio.to_thread(generations.candidate_file, residency)
        try:
            swapped = await client.apply_residency(candidate)
        except httpx.TransportError as error:
            raise EngineDied(f"the engine of {record.name} does not answer: {error}") from error
        if not swapped.is_success and swapped.status_code != _MUST_RESTART:
            await asyncio.to_thread(generations.discard_candidate, fingerprint)
            raise PlanUnavailable(f"the engine of {record.name} refused the set: {_reason(swapped)}")
    await asyncio.to_thread(generations.activate, residency, generation, rolled_back=rolled_back)
    if swapped is not None and swapped.status_code == _MUST_RESTART:
        try:
            await _restart(loaded, record, generation.generation)
        except BaseException as error:
            note = f"not applied: {error}"
            number = None if before is None else before.generation
            await asyncio.to_thread(generations.reject, fingerprint, generation.generation, number, note)
            raise
    swap_ms, moved = _told(swapped)
    log.info(
        "residency_applied model=%s generation=%d source=%s moved=%d swap_ms=%s",
        *(record.name, generation.generation, generation.source, generation.moved, swap_ms),
    )
    return Applied(generation.generation, generation.moved if moved is None else moved, swap_ms)


async def _restart(loaded: LoadedModels, record: ModelRecord, generation: int) -> None:
    """A fresh engine, once the requests of the old one are answered; it must say that it runs the generation."""
    before = loaded.find(record)
    stays = before is not None and before.expires_at is None and before.idle_since_s is not None
    await loaded.unload(record)
    await loaded.load(record, lambda _: None, keep_alive_s=FOREVER_S if stays else None)
    client = loaded.engine_client(record)
    status = await client.get_json("/ostinato/status") if client else None
    told = status.get("residency") if isinstance(status, dict) else None
    if isinstance(told, dict) and told.get("state") == "refused":
        raise PlanUnavailable(f"the engine of {record.name} refused generation {generation}: {told.get('reason')}")


def _reason(response: httpx.Response) -> str:
    answer = _json(response)
    error = answer.get("error")
    told = error.get("message") if isinstance(error, dict) else error
    return str(told or f"HTTP status {response.status_code}")


def _told(response: httpx.Response | None) -> tuple[float | None, int | None]:
    """(swap_ms, moved) of a swap in place."""
    if response is None or not response.is_success:
        return None, None
    answer = _json(response)
    swap_ms, moved = answer.get("swap_ms"), answer.get("moved")
    return (float(swap_ms) if isinstance(swap_ms, (int, float)) else None), (moved if isinstance(moved, int) else None)


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
