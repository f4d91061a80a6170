"""The daemon's learning between sessions, over a model in this process: its service, its planner, its history.

Sessions are logged as they end and the service looks at the model as it does when that has been idle. Only the engine
is reached otherwise: by calls, where the daemon has a socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
from numpy.typing import NDArray

from ostinatod.config import Settings
from ostinatod.engine.gpu_experts import ExpertChoice
from ostinatod.errors import EngineError, PlanUnavailable
from ostinatod.learning.application import Applied
from ostinatod.learning.generations import Generation, Generations
from ostinatod.learning.residencies import Residencies
from ostinatod.learning.service import LearningService
from ostinatod.loaded import LoadedModels
from ostinatod.profiles.residency import read_residency
from ostinatod.profiles.route_log import SessionRoutes
from ostinatod.store.gguf_files import describe, parts_of
from ostinatod.store.records import ModelRecord

Mask = NDArray[np.bool_]
Change = Callable[[Mask], dict[str, Any]]
"""Changes the model to a set; tells `moved` and `swap_ms`. Raises EngineError where it refuses."""


@dataclass(frozen=True, slots=True)
class _Engine:
    """What the service asks of an engine's client."""

    pool_bytes: int
    change: Change

    def status(self) -> dict[str, Any]:
        return {"pool_bytes": self.pool_bytes}

    async def get_json(self, path: str) -> dict[str, Any]:
        return self.status()

    async def apply_residency(self, file: Path) -> httpx.Response:
        try:
            return httpx.Response(200, json=self.change(read_residency(file).mask()))
        except EngineError as error:
            return httpx.Response(400, json={"error": {"message": str(error)}})


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What the service asks of the models in memory: this one is, with a pool."""

    engine: _Engine
    state: str = "ready"
    backend: str = "cuda"
    build: str = "in this process"
    experts: ExpertChoice = field(default_factory=lambda: ExpertChoice("pool", "it is measured here"))

    def find(self, record: ModelRecord) -> _Loaded:
        return self

    def engine_client(self, record: ModelRecord) -> _Engine:
        return self.engine


class DaemonLearning:
    """Learning of one model from the moment that the daemon loads it, which changes the model to its first set.

    pool_bytes  memory for hot experts
    directory   for the daemon's database and residency files
    log         sessions that were logged before

    Raises PlanUnavailable where the daemon makes no set for the model.
    """

    def __init__(
        self, model: Path, pool_bytes: int, change: Change, directory: Path, log: Sequence[SessionRoutes] = ()
    ) -> None:
        parts = parts_of(model)
        told = describe(parts)
        now = datetime.now(timezone.utc)
        self.record = ModelRecord(model.name, told.digest, parts, told.size_bytes, now, "file", told.shape)
        self.log = list(log)
        self._tpots_ms: dict[int, list[float]] = {}
        self._generations = Generations(directory / "learning.db", directory / "residency")
        self._residencies = Residencies(self._generations, lambda _: self.log, hot_experts_fraction=0.0)
        engine, settings = _Engine(pool_bytes, change), Settings()
        self.least_gain = settings.learn_min_gain
        self._service = LearningService(
            settings,
            cast(LoadedModels, _Loaded(engine)),
            self._residencies,
            lambda _, generation: self._tpots_ms.get(generation, []),
        )
        if facts := self._residencies.facts(self.record):
            self._residencies.learn_capacity(facts, engine.status())
        file = self._residencies.file(self.record)
        if file is None:
            raise PlanUnavailable(f"there is no set for {model.name}", hint="Use a model with routed experts.")
        change(read_residency(file).mask())

    @property
    def running(self) -> Mask:
        """The set in use."""
        return self._generations.residency(self.record.digest, self.active.generation).mask()

    @property
    def active(self) -> Generation:
        """The generation in use."""
        return next(item for item in self.history() if item.state == "active")

    def history(self) -> list[Generation]:
        """Every set so far, the newest first."""
        return self._generations.history(self.record.digest)

    def ended(self, session: SessionRoutes, began_at: float, tpots_ms: Sequence[float] = ()) -> None:
        """Log a session that began then (unix seconds) and has just ended, with the times of its answers."""
        self.log.append(replace(session, started_at=began_at, last_at=time.time()))
        self._tpots_ms.setdefault(self.active.generation, []).extend(tpots_ms)

    def look(self) -> Applied | None:
        """What the daemon does when the model has been idle: measure, go back, change to a better set, or nothing."""
        return asyncio.run(self._service.consider(self.record))
