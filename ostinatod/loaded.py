"""Models in memory: which engines run, who uses them, and when they end.

Rules, all of them:
- One engine per set of files; names that share files share the engine.
- Requests for a model that is still loading share one load.
- An engine works on `parallel` requests at a time; `max_queue` more wait in order of arrival, any beyond are refused.
- A model is unloaded after being idle for `keep_alive`; a request may set another time for its model.
- One big model at a time: before a big model loads, the other big one finishes the requests it has, then ends.
  Requests for big models are admitted strictly in order of arrival, so neither of two busy models starves the other.
  Small models (embeddings, completion) stay beside it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal, Protocol

from ostinatod.config import FOREVER_S, Settings
from ostinatod.engine.arguments import context_tokens, engine_arguments, engine_environment
from ostinatod.engine.client import EngineClient, Sampling
from ostinatod.engine.expert_chooser import ExpertChooser, confirmed
from ostinatod.engine.gpu_experts import ExpertChoice
from ostinatod.engine.process import EngineProcess, Launch
from ostinatod.engine.prompt_keeper import PromptKeeper
from ostinatod.errors import EngineBusy, EngineDied
from ostinatod.machine.gpus import Gpu, list_gpus
from ostinatod.store.records import ModelRecord

log = logging.getLogger(__name__)

BIG_MODEL_BYTES = 4 * 1024**3
PROGRESS_INTERVAL_S = 0.25

ModelState = Literal["loading", "ready", "stopping", "dead"]
ModelKey = tuple[str, tuple[Path, ...]]


class EngineBuild(Protocol):
    """A compiled engine."""

    @property
    def server(self) -> Path: ...
    @property
    def library_directory(self) -> Path: ...
    @property
    def backend(self) -> Literal["cpu", "cuda"]: ...
    @property
    def digest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Places:
    """Where engines put their sockets (mode 0700, a short path) and logs, and the environment they start from."""

    sockets: Path
    logs: Path
    environment: dict[str, str]
    prompts: Path | None = None
    """Where prompts are kept while their model is not in memory; None keeps none."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to send one request to a loaded model."""

    record: ModelRecord
    client: EngineClient
    context_tokens: int
    sampling: Sampling
    death: Callable[[], Coroutine[Any, Any, EngineDied]]
    """Waits a moment for the reason when the connection breaks."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One model in memory, as displayed."""

    record: ModelRecord
    state: ModelState
    progress: float | None
    context_tokens: int
    parallel: int
    in_flight: int
    """Requests admitted and not yet answered, waiting ones included."""
    queued: int
    expires_at: datetime | None
    """None while it is used, and for one that stays."""
    pid: int | None
    rss_bytes: int | None
    backend: str
    build: str
    """Digest of the engine's build."""
    experts: ExpertChoice
    """Where its experts are, and why."""
    idle_since_s: float | None
    """When its last request ended, by the monotonic clock; None while it is used."""


class _Resident:
    """The mutable side of a loaded model."""

    def __init__(
        self, record: ModelRecord, process: EngineProcess, build: EngineBuild, experts: ExpertChoice, settings: Settings
    ) -> None:
        self.record = record
        self.process = process
        self.experts = experts
        self.backend = build.backend
        self.build_digest = build.digest
        self.planned_context_tokens = context_tokens(settings, record)
        self.keep_alive_s = settings.keep_alive_s
        self.turns = asyncio.Semaphore(max(1, settings.parallel))
        self.in_flight = 0
        self.queued = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.leaving = False
        self.saving: asyncio.Task[None] | None = None
        self.gone = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None
        self.expires_at: datetime | None = None
        self.idle_since_s: float | None = None

    @property
    def context_tokens(self) -> int:
        return self.process.context_tokens or self.planned_context_tokens


def no_residency(_: ModelRecord) -> Path | None:
    """Every model runs without a residency set."""
    return None


async def no_farewell(_: EngineClient) -> None:
    """Nothing is done before an idle engine ends."""


class LoadedModels:
    """Owns every engine process.

    `find_build` tells which engine to start, `residency_file` with which residency set, `gpus` on what; all may block.
    `before_unload` is waited for when an engine's requests are answered and it is about to end.
    """

    def __init__(
        self,
        find_build: Callable[[], EngineBuild],
        settings: Settings,
        places: Places,
        *,
        big_model_bytes: int = BIG_MODEL_BYTES,
        residency_file: Callable[[ModelRecord], Path | None] = no_residency,
        before_unload: Callable[[EngineClient], Awaitable[None]] = no_farewell,
        gpus: Callable[[], Sequence[Gpu]] = list_gpus,
    ) -> None:
        self._find_build = find_build
        self._residency_file = residency_file
        self._before_unload = before_unload
        self._settings = settings
        self._places = places
        self._expert_chooser = ExpertChooser(settings, places.environment, gpus)
        self._big_model_bytes = big_model_bytes
        self._residents: dict[ModelKey, _Resident] = {}
        self._big_models = asyncio.Lock()
        self._awaiting_big = 0
        self._launches = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.prompts = PromptKeeper(places.prompts, settings)

    @asynccontextmanager
    async def lease(self, record: ModelRecord, *, keep_alive_s: float | None = None) -> AsyncIterator[Lease]:
        """Load the model if need be and wait for a turn.

        Raises EngineNotBuilt, EngineLoadError, or EngineBusy when the queue is full.
        """
        resident = await self._admit(record)
        try:
            resident.queued += 1
            try:
                await resident.turns.acquire()
            finally:
                resident.queued -= 1
            try:
                # Only now: the engine may have crashed while this request was waiting for its turn.
                await resident.process.ensure_ready()
                process = resident.process
                yield Lease(resident.record, process.client, resident.context_tokens, process.sampling, process.death)
            finally:
                resident.turns.release()
        finally:
            self._release(resident, keep_alive_s)

    async def load(
        self, record: ModelRecord, on_progress: Callable[[float | None], None], *, keep_alive_s: float | None = None
    ) -> None:
        """Load the model and return when it is ready; `on_progress` is called with each change. Raises as `lease`."""
        resident = await self._admit(record)
        try:
            ready = asyncio.ensure_future(resident.process.ensure_ready())
            try:
                told: object = self
                while not ready.done():
                    if resident.process.progress != told:
                        told = resident.process.progress
                        on_progress(resident.process.progress)
                    await asyncio.wait({ready}, timeout=PROGRESS_INTERVAL_S)
                await ready
            finally:
                ready.cancel()
        finally:
            self._release(resident, keep_alive_s)

    async def unload(self, record: ModelRecord, *, force: bool = False) -> bool:
        """End the model's engine once its requests are answered, or at once with `force`, which fails them.

        Returns False if it was not loaded.
        """
        resident = self._residents.get(_key(record))
        if resident is None:
            return False
        await asyncio.shield(self._spawn(self._leave(resident, force=force)))
        return True

    def snapshot(self) -> tuple[LoadedModel, ...]:
        """Every model in memory now."""
        return tuple(_describe(resident, self._settings) for resident in self._residents.values())

    def find(self, record: ModelRecord) -> LoadedModel | None:
        """This model, if it is in memory."""
        resident = self._residents.get(_key(record))
        return _describe(resident, self._settings) if resident else None

    def engine_client(self, record: ModelRecord) -> EngineClient | None:
        """The client of a ready engine, for reading what it tells of itself; None if it is not loaded."""
        resident = self._residents.get(_key(record))
        return resident.process.client if resident and resident.process.state == "ready" else None

    async def close(self) -> None:
        """End every engine, whatever it is doing."""
        leaving = [self._spawn(self._leave(resident, force=True)) for resident in self._residents.values()]
        await asyncio.gather(*leaving)

    async def _admit(self, record: ModelRecord) -> _Resident:
        if record.size_bytes < self._big_model_bytes:
            return await self._enter(record)
        if self._awaiting_big > self._settings.max_queue:
            raise _queue_full(record, self._awaiting_big)
        self._awaiting_big += 1
        try:
            async with self._big_models:
                for other in list(self._residents.values()):
                    if _key(other.record) != _key(record) and other.record.size_bytes >= self._big_model_bytes:
                        log.info("model_makes_room model=%s for=%s", other.record.name, record.name)
                        await asyncio.shield(self._spawn(self._leave(other, force=False)))
                return await self._enter(record)
        finally:
            self._awaiting_big -= 1

    async def _enter(self, record: ModelRecord) -> _Resident:
        while True:
            resident = self._residents.get(_key(record))
            if resident is None:
                build = await asyncio.to_thread(self._find_build)
                prompts = await asyncio.to_thread(self.prompts.folder, record)
                residency, experts = await self._placement(record, build)
                resident = self._residents.get(_key(record)) or self._create(record, build, residency, prompts, experts)
            if not resident.leaving:
                break
            await resident.gone.wait()
        if resident.in_flight >= self._settings.parallel + self._settings.max_queue:
            raise _queue_full(record, resident.in_flight)
        resident.in_flight += 1
        resident.idle.clear()
        resident.idle_since_s = None
        self._stop_timer(resident)
        return resident

    async def _placement(self, record: ModelRecord, build: EngineBuild) -> tuple[Path | None, ExpertChoice]:
        """The residency file, and where the experts are, for an engine that is started now."""
        residency = await asyncio.to_thread(self._residency_file, record)
        return residency, await asyncio.to_thread(self._expert_chooser.choose, record, build.backend)

    def _create(
        self,
        record: ModelRecord,
        build: EngineBuild,
        residency: Path | None,
        prompts: Path | None,
        experts: ExpertChoice,
    ) -> _Resident:
        self._launches += 1
        socket = self._places.sockets / f"engine-{os.getpid()}-{self._launches}.sock"

        def launch(residency: Path | None, experts: ExpertChoice) -> Launch:
            chosen = experts.chosen
            arguments = engine_arguments(self._settings, record, socket, residency, build.backend, prompts, chosen)
            return Launch(
                name=record.name,
                command=(str(build.server), *arguments),
                environment=engine_environment(self._places.environment, build.library_directory),
                socket=socket,
                log_file=self._places.logs / f"engine-{record.digest[:12]}.log",
                stall_s=self._settings.load_stall_s,
                told=experts.told,
            )

        async def renew() -> Launch:
            """After a crash: with the set that is active by now, on the memory that is free by now."""
            residency, resident.experts = await self._placement(record, build)
            return launch(residency, resident.experts)

        async def prepare(client: EngineClient) -> None:
            resident.experts = await confirmed(resident.experts, record.name, client)
            await self.prompts.restore(record, build.digest, resident.experts.chosen, client)

        process = EngineProcess(launch(residency, experts), prepare, renew)
        resident = _Resident(record, process, build, experts, self._settings)
        self._residents[_key(record)] = resident
        return resident

    def _release(self, resident: _Resident, keep_alive_s: float | None) -> None:
        resident.in_flight -= 1
        if keep_alive_s is not None:
            resident.keep_alive_s = keep_alive_s
        if resident.in_flight:
            return
        resident.idle.set()
        resident.idle_since_s = time.monotonic()
        if resident.leaving or resident.keep_alive_s == FOREVER_S:
            return
        resident.expires_at = datetime.now(timezone.utc) + timedelta(seconds=resident.keep_alive_s)
        loop = asyncio.get_running_loop()
        resident.timer = loop.call_later(resident.keep_alive_s, self._expire, resident)

    def _expire(self, resident: _Resident) -> None:
        log.info("model_expired model=%s idle_s=%g", resident.record.name, resident.keep_alive_s)
        self._spawn(self._leave(resident, force=False))

    def _stop_timer(self, resident: _Resident) -> None:
        resident.expires_at = None
        if resident.timer is not None:
            resident.timer.cancel()
            resident.timer = None

    async def _leave(self, resident: _Resident, *, force: bool) -> None:
        if not resident.leaving:
            resident.leaving = True
            self._stop_timer(resident)
            if not force:
                await resident.idle.wait()
                await self._before_unload(resident.process.client)
        elif not force:
            await resident.gone.wait()
            return
        if resident.saving is None and resident.process.state == "ready" and not resident.in_flight:
            place, client = resident.experts.chosen, resident.process.client
            saving = self.prompts.save(resident.record, resident.build_digest, place, client)
            resident.saving = self._spawn(saving)
        if resident.saving is not None:
            await asyncio.shield(resident.saving)
        await resident.process.close()
        if not resident.gone.is_set():
            del self._residents[_key(resident.record)]
            resident.gone.set()
            log.info("model_unloaded model=%s forced=%s", resident.record.name, force)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _key(record: ModelRecord) -> ModelKey:
    return record.digest, record.parts


def _queue_full(record: ModelRecord, waiting: int) -> EngineBusy:
    return EngineBusy(
        f"{waiting} requests already wait for {record.name}, which is the limit",
        hint="Send fewer at a time, or raise max_queue (OSTINATO_MAX_QUEUE)",
    )


def _describe(resident: _Resident, settings: Settings) -> LoadedModel:
    states: dict[str, ModelState] = {"ready": "ready", "stopping": "stopping", "dead": "dead"}
    process = resident.process
    pid, rss_bytes = process.pid_and_rss_bytes()
    return LoadedModel(
        record=resident.record,
        state="stopping" if resident.leaving else states.get(process.state, "loading"),
        progress=process.progress,
        context_tokens=resident.context_tokens,
        parallel=settings.parallel,
        in_flight=resident.in_flight,
        queued=resident.queued,
        expires_at=resident.expires_at,
        pid=pid,
        rss_bytes=rss_bytes,
        backend=resident.backend,
        build=resident.build_digest,
        experts=resident.experts,
        idle_since_s=resident.idle_since_s,
    )
