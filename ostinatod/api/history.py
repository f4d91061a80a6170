"""What the daemon has done and is doing: requests, sessions, statistics, its logs; and forgetting, and cancelling."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from ostinatod.api.recorder import OpenRequest
from ostinatod.api.state import Services, ServicesDep
from ostinatod.errors import ModelNotFound, RoutingLogUnavailable
from ostinatod.log_files import daemon_log, engine_log, last_lines
from ostinatod.routing_log import reader, statistics
from ostinatod.routing_log.operations import Selection
from ostinatod.routing_log.records import LoggedRequest
from ostinatod.sessions.identity import MAX_ID_CHARS

router = APIRouter(prefix="/ostinato")

MAX_LIMIT = 1000
MAX_LINES = 5000
SHORT_FINGERPRINT = 12

Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]


class CancelRequest(BaseModel):
    """The id of a request in flight, as /ostinato/requests tells it."""

    id: str = Field(min_length=1, max_length=128)


class ForgetRequest(BaseModel):
    """What to forget; conditions that are given must all hold, and without any the whole log goes."""

    # A misspelt condition would be none, and forget everything.
    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    session: str | None = Field(default=None, min_length=1, max_length=MAX_ID_CHARS)
    before: float | None = Field(default=None, allow_inf_nan=False)


@router.get("/requests")
async def requests(
    services: ServicesDep,
    model: str | None = None,
    session: str | None = None,
    limit: Limit = 50,
    before: Annotated[str | None, Query(max_length=128)] = None,
) -> dict[str, Any]:
    """Requests in flight, then those that have ended, the latest first.

    `reason` says why the log could not be read, else it is null.
    """
    fingerprint = await _fingerprint(services, model)
    names = await _names(services, model)
    open_requests = [
        open_
        for open_ in services.recorder.in_flight()
        if fingerprint in (None, open_.exchange.record.digest)
        and session in (None, open_.turn.session if open_.turn else None)
    ]
    reason, logged = None, []
    try:
        logged = await asyncio.to_thread(
            reader.latest_requests,
            services.recorder.log.file,
            fingerprint=fingerprint,
            session=session,
            before=before,
            limit=limit,
        )
    except RoutingLogUnavailable as error:
        reason = error.message
    return {
        "in_flight": [_open_request(open_) for open_ in open_requests],
        "requests": [_logged(asdict(entry), names) for entry in logged],
        "reason": reason,
    }


@router.post("/cancel")
async def cancel(wanted: CancelRequest, services: ServicesDep) -> dict[str, Any]:
    """End a request wherever it is: in the queue, while its prompt is read, or while it is answered."""
    return {"status": "success", "was_running": services.exchanges.cancel(wanted.id)}


@router.get("/sessions")
async def sessions(services: ServicesDep, model: str | None = None, limit: Limit = 50) -> dict[str, Any]:
    """Sessions, the one with the latest request first."""
    fingerprint = await _fingerprint(services, model)
    names = await _names(services, model)
    file = services.recorder.log.file

    def read() -> list[dict[str, Any]]:
        found = reader.latest_sessions(file, fingerprint=fingerprint, limit=limit)
        medians = statistics.session_percentiles([(entry.fingerprint, entry.id) for entry in found], file)
        return [{**_logged(asdict(entry), names), **medians[entry.fingerprint, entry.id]} for entry in found]

    try:
        return {"sessions": await asyncio.to_thread(read), "reason": None}
    except RoutingLogUnavailable as error:
        return {"sessions": [], "reason": error.message}


@router.get("/stats")
async def stats(services: ServicesDep, model: str | None = None) -> dict[str, Any]:
    """Totals and percentiles by phase and kind of turn, and how the log is doing. 503 if it cannot be read."""
    fingerprint = await _fingerprint(services, model)
    names = await _names(services, model)
    file = services.recorder.log.file
    models = await asyncio.to_thread(statistics.model_statistics, file, fingerprint)
    used_bytes, file_bytes = await asyncio.to_thread(reader.database_bytes, file)
    return {
        "models": [_logged({"fingerprint": found, **told}, names) for found, told in models.items()],
        "sessions": sum(told["sessions"] for told in models.values()),
        "requests": sum(told["requests"] for told in models.values()),
        "database": {"used_bytes": used_bytes, "file_bytes": file_bytes, "file": str(file)},
        "log": asdict(services.recorder.log.status()),
    }


@router.post("/forget")
async def forget(wanted: ForgetRequest, services: ServicesDep) -> dict[str, int]:
    """Delete from the log, for good. A session is named as /ostinato/sessions does, or as its client does.

    Prompts that are kept on disk cannot be told apart by session or time: all of the model's go.
    """
    selection = Selection(await _fingerprint(services, wanted.model), None, wanted.before)
    loaded = [model.record for model in services.loaded.snapshot()]
    await services.loaded.prompts.forget(selection.fingerprint, loaded)
    return asdict(await services.recorder.forget(selection, wanted.session))


@router.get("/logs")
async def logs(
    services: ServicesDep, source: str = "daemon", lines: Annotated[int, Query(ge=1, le=MAX_LINES)] = 200
) -> dict[str, list[str]]:
    """The last lines of the daemon's log, or of the log of the engine of the model `source`."""
    if source == "daemon":
        file = daemon_log(services.logs)
    else:
        record = await asyncio.to_thread(services.store.resolve, source)
        file = engine_log(services.logs, record.digest)
    try:
        return {"lines": await asyncio.to_thread(last_lines, file, lines)}
    except FileNotFoundError:
        return {"lines": []}


async def _fingerprint(services: Services, model: str | None) -> str | None:
    """The fingerprint of a model's name, or of what stands for one that is no longer registered."""
    if model is None:
        return None
    try:
        return (await asyncio.to_thread(services.store.resolve, model)).digest
    except ModelNotFound:
        for fingerprint in await asyncio.to_thread(reader.fingerprints, services.recorder.log.file):
            if len(model) >= SHORT_FINGERPRINT and fingerprint.startswith(model):
                return fingerprint
        raise


async def _names(services: Services, asked: str | None) -> Mapping[str, str]:
    """A name for each fingerprint; the log holds none. Of several, the one asked by, one in memory, or the oldest."""
    in_memory = {model.record.name for model in services.loaded.snapshot()}

    def read() -> Mapping[str, str]:
        registered = services.store.list()
        records = [*registered, *(record for record in registered if record.name in in_memory)]
        if asked is not None:
            with suppress(ModelNotFound):
                records.append(services.store.resolve(asked))
        return {record.digest: record.name for record in records}

    return await asyncio.to_thread(read)


def _logged(entry: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """An entry with a model's name in place of its fingerprint; the beginning of that where no name is left."""
    fingerprint = entry.pop("fingerprint")
    return {"model": names.get(fingerprint, fingerprint[:SHORT_FINGERPRINT]), **entry}


def _open_request(open_: OpenRequest) -> dict[str, Any]:
    exchange, turn = open_.exchange, open_.turn
    known = {
        "id": exchange.id,
        "session": turn.session if turn else None,
        "turn": turn.number if turn else None,
        "model": exchange.record.name,
        "dialect": exchange.dialect,
        "kind": turn.kind if turn else "other",
        "status": open_.state,
        "started_at": exchange.started_at_s,
        "queue_ms": open_.admitted_ms,
        "ttft_ms": open_.first_byte_ms if exchange.stream else None,
        "total_ms": open_.elapsed_ms(),
    }
    names = [name for name in LoggedRequest.__dataclass_fields__ if name != "fingerprint"]
    return {**known, **{name: None for name in names if name not in known}}
