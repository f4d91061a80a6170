"""The daemon's own routes: health, status, load, unload, add, prune, shutdown, routing counts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from ostinatod import __version__
from ostinatod.api.describe import listing, status_entry
from ostinatod.api.engine_status import engine_statuses
from ostinatod.api.errors import from_engine
from ostinatod.api.ollama_requests import ModelName
from ostinatod.api.pruning import as_json, delete_leftovers, list_leftovers
from ostinatod.api.state import Services, ServicesDep
from ostinatod.api.streaming import NdjsonResponse, cancel_and_wait
from ostinatod.config import parse_duration_s
from ostinatod.errors import EngineDied, EngineNotBuilt, RequestError
from ostinatod.loaded import LoadedModels
from ostinatod.store.records import ModelRecord

router = APIRouter()


class LoadRequest(ModelName):
    """`keep_alive` as in a request: seconds, or text such as 5m."""

    keep_alive: float | str | None = None


class UnloadRequest(ModelName):
    """`force` does not wait for the requests in flight."""

    force: bool = False


class AddRequest(BaseModel):
    """A local file, for our own command line: pulling takes no paths."""

    path: str = Field(min_length=1)
    name: str | None = None


class PruneRequest(BaseModel):
    """`dry_run` deletes nothing; `paths` are of an earlier answer: only what of them may still go is deleted."""

    dry_run: bool = False
    paths: list[str] | None = None


@router.get("/health")
async def health() -> dict[str, str]:
    """Answers as long as the daemon runs."""
    return {"status": "ok"}


@router.get("/ostinato/status")
async def status(services: ServicesDep) -> dict[str, Any]:
    """The daemon, its engine build, and every model in memory."""
    models = services.loaded.snapshot()
    engines = await engine_statuses(services.loaded, models)
    return {
        "pid": os.getpid(),
        "version": __version__,
        "uptime_s": round(time.time() - services.started_at_s, 3),
        "settings": asdict(services.settings),
        "build": await asyncio.to_thread(_build, services),
        "models": [
            {**status_entry(model, engine), "timing": services.learning.last_timing(model.record.digest).as_json()}
            for model, engine in zip(models, engines, strict=True)
        ],
        "routing_log": asdict(services.recorder.log.status()),
    }


@router.post("/ostinato/load")
async def load(wanted: LoadRequest, services: ServicesDep) -> Response:
    """Load a model, telling the progress; ends with the status "ready"."""
    keep_alive_s = None if wanted.keep_alive is None else parse_duration_s(wanted.keep_alive)
    record = await asyncio.to_thread(services.store.resolve, wanted.model)
    return NdjsonResponse(_load_lines(services.loaded, record, keep_alive_s))


@router.post("/ostinato/unload")
async def unload(wanted: UnloadRequest, services: ServicesDep) -> dict[str, Any]:
    """Unload a model; without `force` its requests are answered first."""
    record = await asyncio.to_thread(services.store.resolve, wanted.model)
    was_loaded = await services.loaded.unload(record, force=wanted.force)
    return {"status": "success", "was_loaded": was_loaded}


@router.post("/ostinato/add")
async def add(wanted: AddRequest, services: ServicesDep) -> dict[str, Any]:
    """Register a model where the user keeps it."""
    path = Path(wanted.path)
    if not path.is_absolute():
        raise RequestError(f"expected an absolute path, found {wanted.path!r}", hint="Use: ostinato pull PATH")
    record = await asyncio.to_thread(services.store.add_file, path, wanted.name)
    return listing(record, services.settings, services.loaded.find(record))


@router.post("/ostinato/prune")
async def prune(wanted: PruneRequest, services: ServicesDep) -> dict[str, Any]:
    """Delete what no registered model needs, and tell what; nothing of a pull that runs."""
    if wanted.dry_run:
        return as_json(await list_leftovers(services), deleted=False)
    only = None if wanted.paths is None else frozenset(map(Path, wanted.paths))
    return as_json(await delete_leftovers(services, only), deleted=True)


@router.post("/ostinato/shutdown")
async def shutdown(services: ServicesDep) -> dict[str, str]:
    """Stop the daemon: streams in progress are finished within a bounded time."""
    services.request_shutdown()
    return {"status": "stopping"}


@router.get("/ostinato/routes")
async def routes(model: str, services: ServicesDep) -> Response:
    """The routing counts of a loaded model, as its engine tells them."""
    record = await asyncio.to_thread(services.store.resolve, model)
    client = services.loaded.engine_client(record)
    if client is None:
        raise RequestError(f"{record.name} is not loaded", hint=f"Load it: ostinato load {record.name}")
    try:
        answer = await client.routes()
    except httpx.TransportError as error:
        raise EngineDied(f"the engine of {record.name} does not answer: {error}") from error
    if not answer.is_success:
        raise from_engine(answer.status_code, answer.content, param="model")
    return Response(answer.content, media_type="application/json")


def _build(services: Services) -> dict[str, Any] | None:
    try:
        build = services.find_build()
    except EngineNotBuilt:
        return None
    return {"server": str(build.server), "backend": build.backend, "digest": build.digest}


async def _load_lines(
    loaded: LoadedModels, record: ModelRecord, keep_alive_s: float | None
) -> AsyncGenerator[Mapping[str, Any], None]:
    steps: asyncio.Queue[float | None] = asyncio.Queue()
    loading = asyncio.ensure_future(loaded.load(record, steps.put_nowait, keep_alive_s=keep_alive_s))
    try:
        while not loading.done():
            step = asyncio.ensure_future(steps.get())
            await asyncio.wait({loading, step}, return_when=asyncio.FIRST_COMPLETED)
            if step.done():
                yield {"status": "loading", "progress": step.result()}
            else:
                step.cancel()
        await loading
        yield {"status": "ready", "progress": 1.0}
    finally:
        await cancel_and_wait(loading)
