"""What a panel is composed from: everything known at one moment, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from ostinatod.client_dashboard_values import NOT_ASKED, ModelState, Part, Reading, Request, Unavailable
from ostinatod.tui.view.experts import Experts
from ostinatod.tui.view.symbols import Symbols

T = TypeVar("T")

LinkState = Literal["connecting", "up", "lost"]
JobKind = Literal["load", "pull", "unload", "cancel", "apply", "undo"]


@dataclass(frozen=True, slots=True)
class Link:
    """The connection to the daemon."""

    address: str
    state: LinkState = "connecting"
    error: str = ""
    hint: str = ""
    """The next command."""
    since_s: float = 0.0
    """Wall clock of the last change of state."""
    retry_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Host:
    """This machine. CPU shares are between 0 and 1; the dashboard's own is of one core."""

    own_cpu: float | None = None
    cpu: float | None = None
    cores: int | None = None
    ram_total_bytes: int | None = None
    ram_available_bytes: int | None = None
    is_daemons: bool = False
    """Whether the daemon runs on this machine, so that these figures are about it."""


@dataclass(frozen=True, slots=True)
class Job:
    """Something that the dashboard made the daemon do."""

    kind: JobKind
    model: str
    """Or what else it is about, such as a request's id."""
    step: str = ""
    """What is being done; at the end, what was done."""
    share: float | None = None
    """Of the whole, 0 to 1."""
    done_bytes: int = 0
    total_bytes: int = 0
    state: Literal["running", "done", "failed"] = "running"
    error: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that panels show."""

    link: Link
    symbols: Symbols
    now_s: float
    reading: Reading | None = None
    focus: str | None = None
    """The model that panels about one model show."""
    experts: Part[Experts] = NOT_ASKED
    host: Host = Host()
    jobs: tuple[Job, ...] = ()
    is_paused: bool = False
    interval_s: float = 1.0
    log_source: str = "daemon"

    @property
    def model(self) -> ModelState | None:
        """The model in focus, if it is in memory."""
        models = self.reading.daemon.models if self.reading else ()
        return next((entry for entry in models if entry.name == self.focus), None)

    @property
    def finished(self) -> tuple[Request, ...]:
        """Requests to the model in focus that have ended well, newest first."""
        return tuple(
            request
            for request in known(self.reading.requests if self.reading else None, ())
            if request.status == "ok" and (self.focus is None or request.model == self.focus)
        )


def known(part: Part[T] | None, otherwise: T) -> T:
    """The part, or `otherwise` where the daemon did not give it."""
    return otherwise if part is None or isinstance(part, Unavailable) else part
