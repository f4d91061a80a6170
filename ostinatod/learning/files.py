"""Where learning keeps what it knows, and how it reads the routing log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ostinatod.config import Settings
from ostinatod.learning.generations import Generations
from ostinatod.learning.residencies import Residencies
from ostinatod.profiles.route_log import SessionRoutes
from ostinatod.routing_log import reader

MEASURED_REQUESTS = 200
"""The latest requests of a model among which those of a generation are looked for."""


@dataclass(frozen=True, slots=True)
class LearningFiles:
    """What survives the daemon."""

    database: Path
    residencies: Path
    """The directory of residency files."""
    machine_profile: Path

    @classmethod
    def below(cls, directory: Path) -> LearningFiles:
        """All of them in one directory."""
        return cls(directory / "learning.db", directory / "residency", directory / "machine.json")


@dataclass(frozen=True, slots=True)
class LoggedRoutes:
    """What learning reads of a routing log. Methods block and raise RoutingLogUnavailable."""

    file: Path

    def sessions(self, fingerprint: str) -> Sequence[SessionRoutes]:
        """The routes of each session of a model, the oldest first."""
        return reader.sessions(fingerprint, self.file)

    def tpots_ms(self, fingerprint: str, generation: int) -> Sequence[float]:
        """Times per output token of the latest requests that were served with a generation."""
        requests = reader.latest_requests(self.file, fingerprint=fingerprint, limit=MEASURED_REQUESTS)
        return [item.tpot_ms for item in requests if item.generation == generation and item.tpot_ms is not None]


def open_residencies(files: LearningFiles, routes: LoggedRoutes, settings: Settings) -> Residencies:
    """The sets of all models. Opens nothing before it is needed."""
    generations = Generations(files.database, files.residencies)
    return Residencies(generations, routes.sessions, hot_experts_fraction=settings.hot_experts_fraction)
