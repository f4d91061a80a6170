"""What the handlers work with, handed to them as lifespan state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypedDict

from fastapi import Depends, Request

from ostinatod.config import Settings
from ostinatod.loaded import EngineBuild, LoadedModels
from ostinatod.store.records import ModelRecord, ProgressCallback

if TYPE_CHECKING:
    from ostinatod.api.observer import Exchanges
    from ostinatod.api.pulls import Pulls
    from ostinatod.api.recorder import RequestRecorder
    from ostinatod.api.sampled_calls import SampledCalls
    from ostinatod.learning.residencies import Residencies
    from ostinatod.learning.service import LearningService
    from ostinatod.store.leftovers import Leftovers


class ModelStore(Protocol):
    """The registered models. Every method may block."""

    def resolve(self, name: str) -> ModelRecord: ...
    def list(self) -> Sequence[ModelRecord]: ...
    def pull(self, reference: str, on_progress: ProgressCallback, cancelled: threading.Event) -> ModelRecord: ...
    def add_file(self, path: Path, name: str | None = None) -> ModelRecord: ...
    def copy(self, source: str, destination: str) -> ModelRecord: ...
    def remove(self, name: str) -> int: ...
    def leftovers(self, in_use: Collection[Path] = ()) -> Leftovers: ...
    def prune(self, only: Collection[Path] | None = None, in_use: Collection[Path] = ()) -> Leftovers: ...
    def chat_template(self, record: ModelRecord) -> str: ...


@dataclass(frozen=True, slots=True)
class Services:
    """One per daemon."""

    settings: Settings
    store: ModelStore
    loaded: LoadedModels
    pulls: Pulls
    exchanges: Exchanges
    sampled_calls: SampledCalls
    recorder: RequestRecorder
    residencies: Residencies
    learning: LearningService
    machine_profile: Path
    """The file that the profile of this machine is kept in."""
    logs: Path
    """The directory of the log files."""
    find_build: Callable[[], EngineBuild]
    request_shutdown: Callable[[], None]
    started_at_s: float
    """Wall clock."""

    @property
    def sees_images(self) -> bool:
        """Whether the user gave the engines a projector for images."""
        return any(argument.startswith(("-mm", "--mmproj")) for argument in self.settings.engine_args)


class LifespanState(TypedDict):
    """The typed state of the application."""

    services: Services


def _services(request: Request) -> Services:
    services: Services = request.state.services
    return services


ServicesDep = Annotated[Services, Depends(_services)]
