"""Observes every request and has it logged, off its path.

What the event loop does for a request is to note times and to start two pieces of work that nobody waits for: on
arrival, hashing the messages on a thread; after the end, reading the engine's counters and handing the record over.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import httpx

from ostinatod.api.observer import Exchange, Figures
from ostinatod.engine.client import EngineClient
from ostinatod.errors import EngineDied, OstinatoError
from ostinatod.loaded import Lease
from ostinatod.routing_log.bookkeeping import Arrival, Bookkeeper, EngineBook, HotSet, Outcome, read_hot_set
from ostinatod.routing_log.engine_work import EngineWork, read_engine_work
from ostinatod.routing_log.operations import Forgotten, Selection
from ostinatod.routing_log.writer import RoutingLog
from ostinatod.sessions.identity import KEY_BYTES, read_or_create_key, replace_key
from ostinatod.sessions.tracker import Turn

log = logging.getLogger(__name__)

CLOSE_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class HistoryFiles:
    """What the recorder keeps on disk."""

    database: Path
    session_key: Path


@dataclass(slots=True)
class OpenRequest:
    """A request in flight. Times are milliseconds since it arrived."""

    exchange: Exchange
    arrived_s: float
    """Monotonic."""
    identified: asyncio.Future[Turn]
    admitted_ms: float | None = None
    first_byte_ms: float | None = None
    client: EngineClient | None = None

    @property
    def turn(self) -> Turn | None:
        """Its place in its session, once that is known."""
        done = self.identified.done() and not self.identified.cancelled() and self.identified.exception() is None
        return self.identified.result() if done else None

    @property
    def state(self) -> Literal["queued", "running"]:
        """Whether the engine works on it."""
        return "queued" if self.admitted_ms is None else "running"

    def elapsed_ms(self) -> float:
        """Time since it arrived."""
        return (time.monotonic() - self.arrived_s) * 1000


@dataclass(slots=True)
class _Engine:
    book: EngineBook = field(default_factory=EngineBook)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Readings must be entered in the order in which they were taken."""
    hot: HotSet | None = None
    unlogged: int = 0
    """Requests that it was given and that are not logged yet."""
    is_logged: asyncio.Event = field(default_factory=asyncio.Event)


class RequestRecorder:
    """A RelayObserver. Must be made inside the event loop; `key_file` None hashes session ids for this run only."""

    def __init__(self, routing_log: RoutingLog, key_file: Path | None) -> None:
        self.log = routing_log
        self._key_file = key_file
        self._open: dict[str, OpenRequest] = {}
        self._engines: WeakKeyDictionary[EngineClient, _Engine] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        # One thread: the order of arrival is the order in which sessions are told apart.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="request-recorder")
        self._books = Bookkeeper(routing_log, _session_key(key_file), secrets.token_bytes(KEY_BYTES))
        routing_log.start()

    def in_flight(self) -> list[OpenRequest]:
        """The requests that have not ended, the latest first."""
        return sorted(self._open.values(), key=lambda open_: open_.arrived_s, reverse=True)

    def queued(self, exchange: Exchange) -> None:
        """See RelayObserver."""
        loop = asyncio.get_running_loop()
        identified = loop.run_in_executor(self._worker, self._books.identify, _arrival(exchange))
        self._open[exchange.id] = OpenRequest(exchange, time.monotonic(), identified)

    async def admitted(self, exchange: Exchange, lease: Lease) -> None:
        """See RelayObserver."""
        if open_ := self._open.get(exchange.id):
            open_.admitted_ms = open_.elapsed_ms()
            open_.client = lease.client
            engine = self._engines.setdefault(lease.client, _Engine())
            engine.book.open_requests.add(exchange.id)
            engine.unlogged += 1
            engine.is_logged.clear()

    def first_byte(self, exchange: Exchange) -> None:
        """See RelayObserver."""
        if open_ := self._open.get(exchange.id):
            open_.first_byte_ms = open_.elapsed_ms()

    def finished(self, exchange: Exchange, figures: Figures) -> None:
        """See RelayObserver."""
        self._end(exchange, "ok", figures)

    def failed(self, exchange: Exchange, error: OstinatoError) -> None:
        """See RelayObserver."""
        self._end(exchange, error.kind, None)

    def cancelled(self, exchange: Exchange) -> None:
        """See RelayObserver."""
        self._end(exchange, "cancelled", None)

    async def forget(self, selection: Selection, session: str | None) -> Forgotten:
        """Delete from the log what is selected; `session` is the log's name of a session or the client's own.

        Without any condition everything goes, also a log that is damaged, and session ids are hashed with a new key.
        Raises RoutingLogUnavailable.
        """
        loop = asyncio.get_running_loop()
        if session is not None:
            names = frozenset({session, self._books.session_name(session)})
            selection = Selection(selection.fingerprint, names, selection.before)
        if selection != Selection():
            await loop.run_in_executor(self._worker, self._books.forget_sessions)
            return await asyncio.to_thread(self.log.forget, selection)
        forgotten = await asyncio.to_thread(self.log.begin_anew)
        key = await asyncio.to_thread(_new_key, self._key_file)
        await loop.run_in_executor(self._worker, self._books.use_session_key, key)
        return forgotten

    async def settled(self, client: EngineClient) -> None:
        """Return when every request that this engine was given is logged, within bounds: then it may go."""
        engine = self._engines.get(client)
        if engine is not None and engine.unlogged:
            try:
                await asyncio.wait_for(engine.is_logged.wait(), CLOSE_PATIENCE_S)
            except asyncio.TimeoutError:
                log.warning("requests_not_logged_in_time requests=%d", engine.unlogged)

    async def close(self) -> None:
        """Log what has ended, within bounds, and close the log. Engines should still run."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSE_PATIENCE_S)
            for task in late:
                task.cancel()
        self._worker.shutdown(wait=False)
        await asyncio.to_thread(self.log.close)

    def _end(self, exchange: Exchange, status: str, figures: Figures | None) -> None:
        open_ = self._open.get(exchange.id)
        if open_ is None:
            return
        outcome = Outcome(
            status=status,
            total_ms=open_.elapsed_ms(),
            admitted_ms=open_.admitted_ms,
            first_byte_ms=open_.first_byte_ms,
            prompt_tokens=figures.prompt_tokens if figures else None,
            reused_tokens=figures.cached_tokens if figures else None,
            output_tokens=figures.output_tokens if figures else None,
            prompt_ms=figures.prompt_ms if figures else None,
            decode_ms=figures.decode_ms if figures else None,
        )
        self._spawn(self._settle(open_, outcome))
        del self._open[exchange.id]

    async def _settle(self, open_: OpenRequest, outcome: Outcome) -> None:
        try:
            turn = await open_.identified
        except Exception:
            log.exception("request_not_identified")
            turn = Turn(None, None, None, "other")
        arrival = _arrival(open_.exchange)
        loop = asyncio.get_running_loop()
        if open_.client is None:
            await loop.run_in_executor(self._worker, self._books.settle, arrival, turn, outcome, None, None, None)
            return
        engine = self._engines[open_.client]
        try:
            async with engine.reading:
                counters = await _read_counters(open_) if outcome.status != EngineDied.kind else None
                hot, work = await _read_engine(open_, engine) if counters else (None, None)
                await loop.run_in_executor(
                    self._worker, self._books.settle, arrival, turn, outcome, engine.book, counters, hot, work
                )
        finally:
            engine.unlogged -= 1
            if not engine.unlogged:
                engine.is_logged.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("request_not_logged error=%r", error, exc_info=error)


def open_recorder(files: HistoryFiles | None, cap_bytes: int, unused: Path) -> RequestRecorder:
    """A recorder that logs to `files`; without them it knows requests in flight only.

    unused   a path where nothing is, for the log that is not kept
    """
    if files is None:
        return RequestRecorder(RoutingLog(unused, 0), None)
    return RequestRecorder(RoutingLog(files.database, cap_bytes), files.session_key)


def _arrival(exchange: Exchange) -> Arrival:
    return Arrival(
        id=exchange.id,
        fingerprint=exchange.record.digest,
        k=exchange.record.shape.k,
        dialect=exchange.dialect,
        request=exchange.request,
        headers=exchange.headers,
        stream=exchange.stream,
        started_at=exchange.started_at_s,
    )


async def _read_counters(open_: OpenRequest) -> bytes | None:
    if open_.client is None or not open_.exchange.record.shape.n_experts:
        return None
    try:
        answer = await open_.client.routes()
    except (httpx.TransportError, RuntimeError) as error:
        # RuntimeError: the model was unloaded in the meantime, and its client closed.
        log.debug("routes_not_read model=%s error=%r", open_.exchange.record.name, error)
        return None
    return answer.content if answer.is_success else None


async def _read_engine(open_: OpenRequest, engine: _Engine) -> tuple[HotSet | None, EngineWork | None]:
    """The residency set in use, read again when its generation is another, and what the engine has done so far."""
    if open_.client is None:
        return None, None
    status = await open_.client.get_json("/ostinato/status")
    residency = status.get("residency") if isinstance(status, dict) else None
    generation = residency.get("generation") if isinstance(residency, dict) else None
    if not isinstance(residency, dict) or residency.get("state") != "applied" or not isinstance(generation, int):
        engine.hot = None
    elif engine.hot is None or engine.hot.generation != generation or not engine.hot.layers:
        engine.hot = read_hot_set(generation, await open_.client.get_json("/ostinato/residency"))
    return engine.hot, read_engine_work(status if isinstance(status, dict) else None)


def _session_key(file: Path | None) -> bytes:
    try:
        return read_or_create_key(file) if file else secrets.token_bytes(KEY_BYTES)
    except OSError as error:
        log.warning("session_key_not_kept file=%s error=%s", file, error)
        return secrets.token_bytes(KEY_BYTES)


def _new_key(file: Path | None) -> bytes:
    try:
        return replace_key(file) if file else secrets.token_bytes(KEY_BYTES)
    except OSError as error:
        log.warning("session_key_not_kept file=%s error=%s", file, error)
        return secrets.token_bytes(KEY_BYTES)
