"""One request, from the client to an engine and back: load, wait, forward, stream, and stop when the client leaves.

Everything a request waits for happens inside one task. When the client disconnects that task is cancelled, which leaves
the queue, stops waiting for the load, or closes the connection to the engine; the engine stops computing on that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import httpx
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ostinatod.api.body import EngineRequest, engine_body
from ostinatod.api.errors import error_response, from_engine, sse_error
from ostinatod.api.streaming import cancel_and_wait, run_until_disconnect
from ostinatod.errors import OstinatoError
from ostinatod.loaded import LoadedModels
from ostinatod.store.records import ModelRecord

log = logging.getLogger(__name__)

HEADERS_WITHIN_S = 0.9
"""Clients time out and retry when nothing arrives, and a cold prompt takes longer than their patience."""
KEEPALIVE_S = 5.0
KEEPALIVE = b": keepalive\n\n"
CHUNKS_AHEAD = 16
"""Chunks read from the engine before the client has taken them; beyond that the engine waits for the client."""

_EVENT_END = b"\n\n"
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


_Chunks: TypeAlias = "asyncio.Queue[bytes | Exception | None]"


class EngineRelay(Response):
    """The engine's answer to `request` at its own `path`; `prompt_field` names the prompt in error messages."""

    def __init__(
        self, loaded: LoadedModels, record: ModelRecord, request: EngineRequest, path: str, prompt_field: str
    ) -> None:
        super().__init__()
        self._loaded = loaded
        self._record = record
        self._request = request
        self._path = path
        self._prompt_field = prompt_field

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_at, status = time.monotonic(), "cancelled"

        async def work() -> None:
            nonlocal status
            status = "ok"
            try:
                await (self._stream(send) if self._request.stream else self._whole(send))
            except OstinatoError as error:
                status = error.kind
                await error_response(error, scope["path"])(scope, receive, send)
            except asyncio.CancelledError:
                status = "cancelled"
                raise

        await run_until_disconnect(receive, work())
        log.info(
            "request path=%s model=%s stream=%s status=%s ms=%.0f",
            *(self._path, self._record.name, self._request.stream, status, (time.monotonic() - started_at) * 1000),
        )

    @asynccontextmanager
    async def _answer(self) -> AsyncIterator[httpx.Response]:
        """The engine's successful answer, unread. Raises the error that the client is to be told."""
        async with self._loaded.lease(self._record, keep_alive_s=self._request.keep_alive_s) as lease:
            body = engine_body(self._request, lease.context_tokens)
            try:
                async with lease.client.forward(self._path, body) as response:
                    if not response.is_success:
                        raise from_engine(response.status_code, await response.aread(), param=self._prompt_field)
                    yield response
            except (httpx.TransportError, httpx.StreamError) as error:
                raise await lease.death() from error

    async def _whole(self, send: Send) -> None:
        async with self._answer() as response:
            content = await response.aread()
            content_type = response.headers.get("content-type", "application/json")
        headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _stream(self, send: Send) -> None:
        chunks: _Chunks = asyncio.Queue(CHUNKS_AHEAD)
        reading = asyncio.create_task(self._read_events(chunks))
        output = _EventStream(send)
        arriving = asyncio.ensure_future(chunks.get())
        try:
            while True:
                # Not wait_for: before Python 3.12 it swallows a cancellation that meets an arriving chunk.
                await asyncio.wait({arriving}, timeout=KEEPALIVE_S if output.started else HEADERS_WITHIN_S)
                if not arriving.done():
                    await output.write(KEEPALIVE)
                    continue
                chunk = arriving.result()
                if chunk is None:
                    break
                if isinstance(chunk, Exception):
                    raise chunk
                await output.write(chunk)
                arriving = asyncio.ensure_future(chunks.get())
        except OstinatoError as error:
            if not output.started:
                raise
            log.warning("stream_broke_off model=%s reason=%r", self._record.name, error.message)
            await output.write(sse_error(error))
        finally:
            await cancel_and_wait(arriving, reading)
        await output.end()

    async def _read_events(self, chunks: _Chunks) -> None:
        """Put whole events as they arrive, so that no keep-alive or error lands inside one; then how it ended."""
        rest = b""
        try:
            async with self._answer() as response:
                async for chunk in response.aiter_raw():
                    data = rest + chunk
                    end = data.rfind(_EVENT_END) + len(_EVENT_END)
                    whole, rest = (data[:end], data[end:]) if end >= len(_EVENT_END) else (b"", data)
                    if whole:
                        await chunks.put(whole)
            if rest:
                await chunks.put(rest)
        except Exception as error:
            await chunks.put(error)
        else:
            await chunks.put(None)


class _EventStream:
    """The client's side of a stream; the headers go out with the first write."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def write(self, data: bytes) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        if not self.started:
            await self.write(b"")
        await self._send({"type": "http.response.body", "body": b""})
