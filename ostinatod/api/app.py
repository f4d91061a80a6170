"""The application: routers, the gate before them, the table of errors, and the lifespan that owns the engines."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from ostinatod import __version__
from ostinatod.api import admin, errors, ollama, openai
from ostinatod.api.gate import Gate
from ostinatod.api.pulls import Pulls
from ostinatod.api.state import LifespanState, ModelStore, Services
from ostinatod.config import Settings
from ostinatod.errors import OstinatoError
from ostinatod.loaded import BIG_MODEL_BYTES, EngineBuild, LoadedModels, Places


def create_app(
    settings: Settings,
    store: ModelStore,
    find_build: Callable[[], EngineBuild],
    places: Places,
    request_shutdown: Callable[[], None],
    *,
    big_model_bytes: int = BIG_MODEL_BYTES,
) -> FastAPI:
    """The daemon as an ASGI application. Leaving its lifespan cancels downloads and ends every engine.

    Raises ConfigError for settings that the gate refuses.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[LifespanState]:
        loaded = LoadedModels(find_build, settings, places, big_model_bytes=big_model_bytes)
        pulls = Pulls(store)
        services = Services(
            settings=settings,
            store=store,
            loaded=loaded,
            pulls=pulls,
            find_build=find_build,
            request_shutdown=request_shutdown,
            started_at_s=time.time(),
        )
        try:
            yield {"services": services}
        finally:
            await pulls.close()
            await loaded.close()

    gate = Middleware(Gate, allowed_hosts=settings.allowed_hosts, allowed_origins=settings.allowed_origins)
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
    for router in (admin.router, ollama.router, openai.router):
        app.include_router(router)
    return app
