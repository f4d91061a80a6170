"""A small MoE model as a file, sessions that favour some of its experts, and learning around a scripted engine."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from ostinatod.config import Settings
from ostinatod.engine.gpu_experts import Backend
from ostinatod.learning.generations import Generations
from ostinatod.learning.residencies import Residencies
from ostinatod.learning.service import LearningService
from ostinatod.loaded import LoadedModels, Places
from ostinatod.profiles.route_log import SessionRoutes
from ostinatod.store.records import ModelRecord
from tests.conftest import ScriptedEngine
from tests.fakes.gguf import write_model
from tests.fakes.memory_store import record

T = TypeVar("T")

LAYERS, EXPERTS = 2, 4
"""Of the fake model; a token selects 2, so half of the experts are 4."""
HALF = 0.5


def logged(favourites: Sequence[int], *, at: float, times: int = 20) -> SessionRoutes:
    """A session that began and ended `at` and routes mostly to some experts of each layer."""
    counts = np.full((LAYERS, EXPERTS), 50, np.int64)
    counts[:, list(favourites)] *= times
    return SessionRoutes(
        session=f"s{at}",
        started_at=at,
        last_at=at,
        requests=1,
        layers=(0, 1),
        prefill=np.zeros_like(counts),
        decode=counts,
        new_tokens=0,
        output_tokens=1000,
    )


def favours(mask: NDArray[np.bool_] | None) -> list[list[int]] | None:
    """The hot experts of each layer."""
    return None if mask is None else [np.flatnonzero(row).tolist() for row in mask]


@pytest.fixture
def model(tmp_path: Path) -> ModelRecord:
    """Two layers of four experts, in a real file."""
    path = write_model(tmp_path / "m.gguf")
    made = record("m", path=path)
    return dataclasses.replace(made, shape=dataclasses.replace(made.shape, n_experts=EXPERTS))


@dataclass
class Learning:
    """Learning around one scripted engine, with a log that the test writes."""

    settings: Settings
    loaded: LoadedModels
    residencies: Residencies
    service: LearningService
    log: list[SessionRoutes]
    tpots: dict[int, list[float]]
    clock: Clock
    records: list[ModelRecord]
    """Models of the store."""


@dataclass
class Clock:
    """Wall time of generations, moved by the test."""

    now: float = field(default_factory=time.time)

    def __call__(self) -> float:
        return self.now


RunLearning = Callable[..., Any]


@pytest.fixture
def learn(tmp_path: Path, scripted_engine: ScriptedEngine) -> RunLearning:
    """Runs a coroutine function on a fresh `Learning`: `learn(body, script={…}, backend=…, **settings)`; returns its
    result."""

    @asynccontextmanager
    async def opened(script: dict[str, Any], backend: Backend, settings: Settings) -> AsyncIterator[Learning]:
        engine = dataclasses.replace(scripted_engine.scripted(**script), backend=backend)
        log: list[SessionRoutes] = []
        tpots: dict[int, list[float]] = {}
        clock = Clock()
        residencies = Residencies(
            Generations(tmp_path / "learning.db", tmp_path / "residency"),
            lambda fingerprint: log,
            hot_experts_fraction=settings.hot_experts_fraction,
            clock=clock,
        )
        sockets = tmp_path / "run"
        sockets.mkdir(mode=0o700, exist_ok=True)
        places = Places(sockets=sockets, logs=tmp_path / "logs", environment=engine.environment())
        loaded = LoadedModels(lambda: engine, settings, places, residency_file=residencies.file)
        records: list[ModelRecord] = []
        service = LearningService(
            *(settings, loaded, residencies, lambda _, number: tpots.get(number, [])), list_records=lambda: records
        )
        try:
            yield Learning(settings, loaded, residencies, service, log, tpots, clock, records)
        finally:
            await loaded.close()

    def run(
        body: Callable[[Learning], Awaitable[T]],
        script: dict[str, Any] | None = None,
        backend: Backend = "cpu",
        **settings: Any,
    ) -> T:
        async def whole() -> T:
            chosen = Settings(**{"hot_experts_fraction": HALF, **settings})
            async with opened(script or {}, backend, chosen) as learning:
                return await body(learning)

        return asyncio.run(whole())

    return run


async def load(learning: Learning, model: ModelRecord) -> None:
    """Load the model and leave it idle."""
    await learning.loaded.load(model, lambda _: None)
