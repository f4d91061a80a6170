"""One request, from the client to an engine and back: load, wait, forward, stream, and stop when the client leaves.

Everything a request waits for happens inside one task. When the client disconnects that task is cancelled, which leaves
the queue, stops waiting for the load, or closes the connection to the engine; the engine stops computing on that. An
answer whose end the client has been told is not cancelled: nothing is left to compute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias

import httpx
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ostinatod.api.answer import Answer, PassedAnswer, ending_events, has_output, is_unreadable_output, split_error
from ostinatod.api.body import EngineRequest, engine_body
from ostinatod.api.errors import EngineRefused, RequestCancelled, error_response, from_engine, internal_error
from ostinatod.api.figures import FiguresReader
from ostinatod.api.observer import Dialect, Exchange, Exchanges, RelayObserver, new_exchange_id
from ostinatod.api.sampled_calls import CallsReader, SampledCalls
from ostinatod.api.streaming import cancel_and_wait, run_until_disconnect
from ostinatod.errors import OstinatoError
from ostinatod.loaded import LoadedModels
from ostinatod.store.records import ModelRecord

log = logging.getLogger(__name__)

HEADERS_WITHIN_S = 0.9
"""Clients time out and retry when nothing arrives, and a cold prompt takes longer than their patience."""
KEEPALIVE_S = 5.0
CHUNKS_AHEAD = 16
"""Chunks read from the engine before the client has taken them; beyond that the engine waits for the client."""

_EVENT_END = b"\n\n"
_STREAM_HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "cookie"})


_Chunks: TypeAlias = "asyncio.Queue[bytes | Exception | None]"


class EngineRelay(Response):
    """The engine's answer to `request` at its own `path`; `prompt_field` names the prompt in error messages.

    `answer` says it in the client's dialect; without it the engine's own words pass. `sampled_calls` remembers the
    calls in it.
    """

    def __init__(
        self,
        loaded: LoadedModels,
        exchanges: Exchanges,
        record: ModelRecord,
        request: EngineRequest,
        path: str,
        prompt_field: str,
        *,
        dialect: Dialect = "openai",
        answer: Answer | None = None,
        sampled_calls: SampledCalls | None = None,
    ) -> None:
        super().__init__()
        self._loaded = loaded
        self._exchanges = exchanges
        self._record = record
        self._request = request
        self._path = path
        self._prompt_field = prompt_field
        self._dialect: Dialect = dialect
        self._answer = answer or PassedAnswer()
        self._figures = FiguresReader()
        self._calls = CallsReader(sampled_calls or SampledCalls())
        self._cancel_asked = False
        self._has_ended_it = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = self._new_exchange(scope)
        status, told = "cancelled", _cancelled(exchange)

        async def work() -> None:
            nonlocal status, told
            try:
                await (self._stream(exchange, send) if self._request.stream else self._whole(exchange, send))
                status, told = "ok", _finished(exchange, self._figures)
            except _BrokenOff as broken:
                status, told = broken.error.kind, _failed(exchange, broken.error)
            except OstinatoError as error:
                status, told = error.kind, _failed(exchange, error)
                await error_response(error, scope["path"])(scope, receive, send)
            except Exception:
                status, told = "internal_error", _failed(exchange, internal_error())
                raise

        working = asyncio.ensure_future(work())

        def cancel() -> None:
            self._cancel_asked = True
            working.cancel()

        self._exchanges.enter(exchange, cancel)
        try:
            # Clients close as soon as they have read why the answer ended, before the engine's last words have passed.
            await run_until_disconnect(receive, working, lambda: self._figures.tell_the_end or self._has_ended_it)
        finally:
            self._exchanges.leave(exchange, told)
            log.info(
                "request id=%s dialect=%s path=%s model=%s stream=%s status=%s ms=%.0f",
                *(exchange.id, self._dialect, self._path, self._record.name, self._request.stream, status),
                (time.time() - exchange.started_at_s) * 1000,
            )

    def _new_exchange(self, scope: Scope) -> Exchange:
        headers = {name: value for name, value in Headers(scope=scope).items() if name not in _SECRET_HEADERS}
        return Exchange(
            id=new_exchange_id(),
            record=self._record,
            dialect=self._dialect,
            path=scope["path"],
            request=self._request.fields,
            headers=headers,
            stream=self._request.stream,
            started_at_s=time.time(),
        )

    @asynccontextmanager
    async def _forwarded(self, exchange: Exchange) -> AsyncIterator[httpx.Response]:
        """The engine's successful answer, unread. Raises the error that the client is to be told."""
        async with self._loaded.lease(self._record, keep_alive_s=self._request.keep_alive_s) as lease:
            await self._exchanges.admit(exchange, lease)
            self._answer.sampled_with(lease.sampling)
            body = engine_body(self._request, lease.context_tokens)
            try:
                async with lease.client.forward(self._path, body) as response:
                    if not response.is_success:
                        raise from_engine(response.status_code, await response.aread(), param=self._prompt_field)
                    yield response
            except (httpx.TransportError, httpx.StreamError) as error:
                raise await lease.death() from error

    async def _whole(self, exchange: Exchange, send: Send) -> None:
        with self._cancellable():
            async with self._forwarded(exchange) as response:
                content = await response.aread()
                content_type = response.headers.get("content-type", "application/json")
        self._exchanges.tell(_first_byte(exchange))
        self._figures.whole(content)
        self._calls.whole(content)
        self._calls.end()
        content = self._answer.whole(content)
        headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _stream(self, exchange: Exchange, send: Send) -> None:
        chunks: _Chunks = asyncio.Queue(CHUNKS_AHEAD)
        output = _EventStream(send, self._answer.content_type)
        try:
            with self._cancellable():
                await self._pass_on(exchange, chunks, output)
            self._calls.end()
            await output.write(self._answer.end())
        except Exception as fault:
            if not output.started:
                raise
            error = fault if isinstance(fault, OstinatoError) else internal_error()
            log.warning("stream_broke_off id=%s reason=%r", exchange.id, error.message, exc_info=fault is not error)
            await output.write(self._answer.error(error))
            await output.end()
            raise _BrokenOff(error) from fault
        await output.end()

    async def _pass_on(self, exchange: Exchange, chunks: _Chunks, output: _EventStream) -> None:
        """Write what is read as it arrives, and something when nothing does."""
        reading = asyncio.create_task(self._read_events(exchange, chunks))
        arriving = asyncio.ensure_future(chunks.get())
        has_begun = False
        try:
            while True:
                # Not wait_for: before Python 3.12 it swallows a cancellation that meets an arriving chunk.
                await asyncio.wait({arriving}, timeout=KEEPALIVE_S if output.started else HEADERS_WITHIN_S)
                if not arriving.done():
                    await output.write(self._answer.keepalive())
                    continue
                chunk = arriving.result()
                if chunk is None:
                    break
                if isinstance(chunk, Exception):
                    await self._end_by(chunk, output)
                    break
                if not has_begun and has_output(chunk):
                    has_begun = True
                    self._exchanges.tell(_first_byte(exchange))
                await self._write(chunk, output)
                arriving = asyncio.ensure_future(chunks.get())
        finally:
            await cancel_and_wait(arriving, reading)

    async def _write(self, chunk: bytes, output: _EventStream) -> None:
        """Pass whole events on. Raises the error that the engine tells in one of them, after those before it."""
        before, error = split_error(chunk, param=self._prompt_field)
        self._figures.events(before)
        self._calls.events(before)
        await output.write(self._answer.events(before))
        if error is not None:
            await self._end_by(error, output)

    async def _end_by(self, error: Exception, output: _EventStream) -> None:
        """Raise what ends the stream, unless it is the model's text that does not follow its own template.

        That has been passed on as far as it could be read; failing the turn would make the agent repeat it. Whole
        answers have no such case: the engine reads them once.
        """
        if not (isinstance(error, EngineRefused) and is_unreadable_output(error)):
            raise error
        log.warning("answer_unreadable model=%s reason=%r", self._record.name, error.message)
        self._has_ended_it = True
        await output.write(self._answer.events(ending_events(self._record.name)))

    async def _read_events(self, exchange: Exchange, chunks: _Chunks) -> None:
        """Put whole events as they arrive, so that no keep-alive or error lands inside one; then how it ended."""
        try:
            async with self._forwarded(exchange) as response:
                async for events in whole_events(response):
                    await chunks.put(events)
        except Exception as error:
            await chunks.put(error)
        else:
            await chunks.put(None)

    @contextmanager
    def _cancellable(self) -> Iterator[None]:
        """Turns a cancellation by id into an error that the client is told; one by disconnect stays what it is."""
        try:
            yield
        except asyncio.CancelledError:
            if not self._cancel_asked:
                raise
            raise RequestCancelled("the request was cancelled") from None


async def whole_events(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The events of a streamed answer, as many at once as have arrived whole."""
    rest = b""
    async for chunk in response.aiter_raw():
        data = rest + chunk
        end = data.rfind(_EVENT_END) + len(_EVENT_END)
        whole, rest = (data[:end], data[end:]) if end >= len(_EVENT_END) else (b"", data)
        if whole:
            yield whole
    if rest:
        yield rest


class _BrokenOff(Exception):
    """The error was told inside the stream."""

    def __init__(self, error: OstinatoError) -> None:
        super().__init__(error.message)
        self.error = error


class _EventStream:
    """The client's side of a stream; the headers go out with the first write."""

    def __init__(self, send: Send, content_type: bytes) -> None:
        self._send = send
        self._headers = [(b"content-type", content_type), *_STREAM_HEADERS]
        self.started = False

    async def write(self, data: bytes) -> None:
        if not data:
            return
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        if not self.started:
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await self._send({"type": "http.response.body", "body": b""})


_Call: TypeAlias = Callable[[RelayObserver], None]


def _first_byte(exchange: Exchange) -> _Call:
    return lambda observer: observer.first_byte(exchange)


def _finished(exchange: Exchange, figures: FiguresReader) -> _Call:
    return lambda observer: observer.finished(exchange, figures.figures)


def _failed(exchange: Exchange, error: OstinatoError) -> _Call:
    if isinstance(error, RequestCancelled):
        return _cancelled(exchange)
    return lambda observer: observer.failed(exchange, error)


def _cancelled(exchange: Exchange) -> _Call:
    return lambda observer: observer.cancelled(exchange)
