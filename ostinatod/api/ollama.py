"""Ollama's model management: what our own command line needs, and editors that look for models.

Answers come from `ollama_run`; what would make or publish a model is refused with the command that does its job.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ostinatod import __version__
from ostinatod.api.describe import listing, running, shown
from ostinatod.api.engine_status import engine_statuses
from ostinatod.api.ollama_requests import ModelName
from ostinatod.api.pulls import Pulls
from ostinatod.api.state import ServicesDep
from ostinatod.api.streaming import NdjsonResponse
from ostinatod.errors import ModelError, RequestError
from ostinatod.store.records import ModelRecord, PullProgress

OLLAMA_VERSION = "0.14.0"
"""The version of Ollama's API that this subset follows; clients refuse to talk to much older ones."""

_PATH = re.compile(r"[./~\\]|file:|[A-Za-z]:[\\/]", re.IGNORECASE)

_THINKING_MARKS = ("enable_thinking", "reasoning_content", "<think>", "<|channel|>analysis")

router = APIRouter()


class NotSupported(RequestError):
    """A part of Ollama's API that this daemon leaves out on purpose."""

    status = 501
    kind = "not_supported"


class PullRequest(ModelName):
    """`stream` false answers once, at the end."""

    stream: bool = True


class CopyRequest(BaseModel):
    """Give `source` the further name `destination`."""

    source: str = Field(min_length=1)
    destination: str = Field(min_length=1)


@router.api_route("/", methods=["GET", "HEAD"])
async def root() -> Response:
    """What clients probe for, word for word."""
    return PlainTextResponse("Ollama is running")


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
    models = services.loaded.snapshot()
    engines = await engine_statuses(services.loaded, models)
    return {"models": [running(model, engine) for model, engine in zip(models, engines, strict=True)]}


@router.post("/api/show")
async def show(wanted: ModelName, services: ServicesDep) -> dict[str, Any]:
    """What is known about a model."""
    record = await asyncio.to_thread(services.store.resolve, wanted.model)
    template = await asyncio.to_thread(services.store.chat_template, record)
    told = shown(record, template, services.settings, services.loaded.find(record))
    # Editors show the base name, and hide models that do not say what they can do.
    names = {"general.basename": record.name, "general.name": record.name}
    told["model_info"] = names | told["model_info"]
    told["capabilities"] = capabilities_of(record, template)
    return told


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
            await services.loaded.prompts.forget(record.digest, [])
    freed_bytes = await asyncio.to_thread(services.store.remove, wanted.model)
    return {"status": "success", "freed_bytes": freed_bytes}


@router.post("/api/copy")
async def copy(wanted: CopyRequest, services: ServicesDep) -> dict[str, Any]:
    """Give a model a further name."""
    source = await asyncio.to_thread(services.store.resolve, wanted.source)
    await asyncio.to_thread(services.store.copy, source.name, wanted.destination)
    return {"status": "success"}


@router.post("/api/create")
async def create() -> None:
    """Models are not made here."""
    raise NotSupported(
        "this daemon makes no models from Modelfiles",
        hint="Use ostinato pull for a GGUF file or a hub repository, and ostinato cp for a further name",
    )


@router.post("/api/push")
async def push() -> None:
    """Models are not published from here."""
    raise NotSupported("this daemon publishes no models", hint="Upload the GGUF file with your hub's own client")


@router.api_route("/api/blobs/{digest}", methods=["HEAD", "POST"])
async def blobs(digest: str) -> None:
    """Files do not come in through HTTP."""
    raise NotSupported("this daemon takes no uploads", hint="Use a file where it is: ostinato pull PATH")


def capabilities_of(record: ModelRecord, template: str) -> list[str]:
    """Ollama's words for what the model can do, read off its chat template."""
    if record.shape.is_embedding:
        return ["embedding"]
    tools = ["tools"] if "tools" in template else []
    thinking = ["thinking"] if any(mark in template for mark in _THINKING_MARKS) else []
    return ["completion", *tools, *thinking]


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
