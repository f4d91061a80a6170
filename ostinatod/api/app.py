"""The application: routers, the gate before them, the table of errors, and the lifespan that owns the engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from ostinatod import __version__
from ostinatod.api import admin, anthropic, errors, history, learning, ollama, ollama_run, openai, props, responses
from ostinatod.api.gate import Gate, Keys
from ostinatod.api.observer import Exchanges, RelayObserver
from ostinatod.api.pulls import Pulls
from ostinatod.api.recorder import HistoryFiles, open_recorder
from ostinatod.api.sampled_calls import SampledCalls
from ostinatod.api.state import LifespanState, ModelStore, Services
from ostinatod.api.streaming import cancel_and_wait
from ostinatod.config import Settings
from ostinatod.errors import OstinatoError
from ostinatod.learning.files import LearningFiles, LoggedRoutes, open_residencies, open_timings
from ostinatod.learning.service import LearningService
from ostinatod.loaded import BIG_MODEL_BYTES, EngineBuild, LoadedModels, Places


def create_app(
    settings: Settings,
    store: ModelStore,
    find_build: Callable[[], EngineBuild],
    places: Places,
    request_shutdown: Callable[[], None],
    *,
    big_model_bytes: int = BIG_MODEL_BYTES,
    keys: Keys | None = None,
    observers: Sequence[RelayObserver] = (),
    history_files: HistoryFiles | None = None,
    learning_files: LearningFiles | None = None,
) -> FastAPI:
    """The daemon as an ASGI application. Leaving its lifespan cancels downloads and ends every engine.

    Without `history_files` no routing log is kept, without `learning_files` nothing that was learned.

    Raises ConfigError for settings that the gate refuses.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[LifespanState]:
        files = learning_files or LearningFiles.below(places.sockets)
        log_file = history_files.database if history_files else places.sockets / "routes.db"
        routes = LoggedRoutes(log_file)
        residencies = open_residencies(files, routes, settings)
        recorder = open_recorder(history_files, settings.routing_log_bytes, log_file)
        loaded = LoadedModels(
            find_build,
            settings,
            places,
            big_model_bytes=big_model_bytes,
            residency_file=residencies.file,
            before_unload=recorder.settled,
        )
        learner = LearningService(
            *(settings, loaded, residencies, routes.tpots_ms, open_timings(files, routes)), list_records=store.list
        )
        pulls = Pulls(store)
        services = Services(
            settings=settings,
            store=store,
            loaded=loaded,
            pulls=pulls,
            exchanges=Exchanges((recorder, *observers)),
            sampled_calls=SampledCalls(),
            recorder=recorder,
            residencies=residencies,
            learning=learner,
            machine_profile=files.machine_profile,
            logs=places.logs,
            find_build=find_build,
            request_shutdown=request_shutdown,
            started_at_s=time.time(),
        )
        await asyncio.to_thread(loaded.prompts.open)
        learns = asyncio.create_task(learner.run())
        try:
            yield {"services": services}
        finally:
            await cancel_and_wait(learns)
            await pulls.close()
            await recorder.close()
            await loaded.close()

    gate = Middleware(Gate, allowed_hosts=settings.allowed_hosts, allowed_origins=settings.allowed_origins, keys=keys)
    app = FastAPI(
        title="Ostinato",
        version=__version__,
        lifespan=lifespan,
        middleware=[gate],
        openapi_url=None,
        exception_handlers={
            OstinatoError: errors.on_ostinato_error,
            HTTPException: errors.on_http_error,
            RequestValidationError: errors.on_validation_error,
            Exception: errors.on_unexpected_error,
        },
    )
    routed = (admin, history, learning, ollama, ollama_run, openai, anthropic, responses, props)
    for module in routed:
        app.include_router(module.router)
    return app
