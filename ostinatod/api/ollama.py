"""Ollama's model management, as far as our own command line and editors that look for models need it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field, model_validator
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ostinatod import __version__
from ostinatod.api.describe import listing, running, shown
from ostinatod.api.pulls import Pulls
from ostinatod.api.state import ServicesDep
from ostinatod.api.streaming import NdjsonResponse
from ostinatod.errors import ModelError, RequestError
from ostinatod.store.records import PullProgress

OLLAMA_VERSION = "0.14.0"
"""The version of Ollama's API that this subset follows; clients refuse to talk to much older ones."""

_PATH = re.compile(r"[./~\\]|file:|[A-Za-z]:[\\/]", re.IGNORECASE)

router = APIRouter()


class ModelName(BaseModel):
    """`name` is what older clients say."""

    model: str = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _accept_name(cls, values: Any) -> Any:
        return {**values, "model": values["name"]} if isinstance(values, dict) and values.get("name") else values


class PullRequest(ModelName):
    """`stream` false answers once, at the end."""

    stream: bool = True


class CopyRequest(BaseModel):
    """Give `source` the further name `destination`."""

    source: str = Field(min_length=1)
    destination: str = Field(min_length=1)


@router.api_route("/", methods=["GET", "HEAD"])
async def root() -> Response:
    """What clients probe for."""
    return PlainTextResponse("Ostinato is running")


@router.api_route("/api/version", methods=["GET", "HEAD"])
async def version() -> dict[str, str]:
    """The API's version and our own."""
    return {"version": OLLAMA_VERSION, "ostinato": __version__}


@router.api_route("/api/tags", methods=["GET", "HEAD"])
async def tags(services: ServicesDep) -> dict[str, Any]:
    """Every registered model."""
    records = await asyncio.to_thread(services.store.list)
    return {"models": [listing(record, services.settings, services.loaded.find(record)) for record in records]}


@router.get("/api/ps")
async def ps(services: ServicesDep) -> dict[str, Any]:
    """Every model in memory."""
    return {"models": [running(loaded) for loaded in services.loaded.snapshot()]}


@router.post("/api/show")
async def show(wanted: ModelName, services: ServicesDep) -> dict[str, Any]:
    """What is known about a model."""
    record = await asyncio.to_thread(services.store.resolve, wanted.model)
    template = await asyncio.to_thread(services.store.chat_template, record)
    return shown(record, template, services.settings, services.loaded.find(record))


@router.post("/api/pull")
async def pull(wanted: PullRequest, services: ServicesDep) -> Response:
    """Download a model, telling each step."""
    if _PATH.match(wanted.model):
        raise RequestError(
            f"{wanted.model!r} is a path, and no path is taken from a client",
            hint=f"Add local files with: ostinato pull {wanted.model}",
        )
    if wanted.stream:
        return NdjsonResponse(_pull_lines(services.pulls, wanted.model))
    async for _ in services.pulls.watch(wanted.model):
        pass
    return JSONResponse({"status": "success"})


@router.delete("/api/delete")
async def delete(wanted: Annotated[ModelName, Body()], services: ServicesDep) -> dict[str, Any]:
    """Remove a name, or an unfinished pull of it, and files that no other name uses. Its engine ends first."""
    with contextlib.suppress(ModelError):
        record = await asyncio.to_thread(services.store.resolve, wanted.model)
        names = [other for other in await asyncio.to_thread(services.store.list) if other.parts == record.parts]
        if len(names) <= 1:
            await services.loaded.unload(record, force=True)
    freed_bytes = await asyncio.to_thread(services.store.remove, wanted.model)
    return {"status": "success", "freed_bytes": freed_bytes}


@router.post("/api/copy")
async def copy(wanted: CopyRequest, services: ServicesDep) -> dict[str, Any]:
    """Give a model a further name."""
    source = await asyncio.to_thread(services.store.resolve, wanted.source)
    await asyncio.to_thread(services.store.copy, source.name, wanted.destination)
    return {"status": "success"}


async def _pull_lines(pulls: Pulls, reference: str) -> AsyncGenerator[Mapping[str, Any], None]:
    """Lines of a pull; none before its files are known, so that what fails until then fails with a status."""
    resolving: PullProgress | None = None
    async with aclosing(pulls.watch(reference)) as steps:
        async for step in steps:
            if step.status == "resolving":
                resolving = step
                continue
            if resolving is not None:
                yield _line(resolving)
                resolving = None
            yield _line(step)
    yield {"status": "success"}


def _line(step: PullProgress) -> dict[str, Any]:
    line: dict[str, Any] = {"status": step.status}
    if step.file is not None:
        # Ollama's clients draw one bar per digest.
        line |= {"digest": step.file, "file": step.file, "total": step.total_bytes, "completed": step.completed_bytes}
    if step.all_total_bytes:
        line |= {"all_total": step.all_total_bytes, "all_completed": step.all_completed_bytes}
    if step.detail:
        line["detail"] = step.detail
    return line
