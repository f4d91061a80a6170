"""Where learning keeps what it knows, and how it reads the routing log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ostinatod.config import Settings
from ostinatod.learning.calibrations import Calibrations
from ostinatod.learning.database import LearningDatabase
from ostinatod.learning.generations import Generations
from ostinatod.learning.residencies import Residencies
from ostinatod.learning.timing import LEAST_TOKENS, Timings, described
from ostinatod.machine.profile import machine_fingerprint
from ostinatod.profiles.route_log import SessionRoutes
from ostinatod.routing_log import reader
from ostinatod.routing_log.records import LoggedRequest

READ_SESSIONS = 128
"""The newest of a model. Plans remember 80 (`profiles.rates.remembered`); what a set has done is shown on these. All
that a log can hold would take minutes to read, and gigabytes."""
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
        """The routes of each of the newest sessions of a model, the oldest first."""
        return reader.sessions(fingerprint, self.file, newest=READ_SESSIONS)

    def requests(self, fingerprint: str) -> Sequence[LoggedRequest]:
        """The latest requests of a model, the newest first."""
        return reader.latest_requests(self.file, fingerprint=fingerprint, limit=MEASURED_REQUESTS)

    def tpots_ms(self, fingerprint: str, generation: int) -> Sequence[float]:
        """Times per output token of the latest answers that say something about it, served with a generation."""
        served = [item for item in self.requests(fingerprint) if item.generation == generation]
        return [
            item.tpot_ms
            for item in served
            if item.tpot_ms is not None and item.status == "ok" and (item.output_tokens or 0) >= LEAST_TOKENS
        ]


def open_residencies(files: LearningFiles, routes: LoggedRoutes, settings: Settings) -> Residencies:
    """The sets of all models. Opens nothing before it is needed."""
    generations = Generations(files.database, files.residencies)
    return Residencies(generations, routes.sessions, hot_experts_fraction=settings.hot_experts_fraction)


def open_timings(files: LearningFiles, routes: LoggedRoutes) -> Timings:
    """What all models take per token on this machine. Looks at the machine once, when it is first needed."""
    return Timings(routes.requests, Calibrations(LearningDatabase(files.database), cache(machine_fingerprint)))


def known_calibrations(files: LearningFiles) -> list[dict[str, Any]]:
    """What engines have measured on this machine, one entry per model, the latest last. Raises PlanUnavailable."""
    if not files.database.exists():
        return []
    return described(Calibrations(LearningDatabase(files.database), machine_fingerprint).latest())
