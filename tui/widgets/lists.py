"""The panels with rows: models, sessions, requests, generations, log lines."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from ostinatod.client_dashboard import PartName
from ostinatod.tui.view import help
from ostinatod.tui.view.learning import history_table
from ostinatod.tui.view.lines import Line
from ostinatod.tui.view.logs import found_lines, logs_table
from ostinatod.tui.view.models import models_table
from ostinatod.tui.view.state import View
from ostinatod.tui.view.table import Table
from ostinatod.tui.view.traffic import requests_table, sessions_table
from ostinatod.tui.widgets.list_panel import ListPanel


class ModelsPanel(ListPanel):
    """Models on this machine and in memory."""

    TITLE = "Models"
    PARTS: ClassVar[frozenset[PartName]] = frozenset({"listings"})
    GUIDE = help.MODELS

    def table(self, view: View) -> Table:
        """Rows of models."""
        return models_table(view)


class SessionsPanel(ListPanel):
    """Agent sessions."""

    TITLE = "Sessions"
    PARTS: ClassVar[frozenset[PartName]] = frozenset({"sessions"})
    GUIDE = help.SESSIONS

    def table(self, view: View) -> Table:
        """Rows of sessions."""
        return sessions_table(view)


class RequestsPanel(ListPanel):
    """Requests."""

    TITLE = "Requests"
    PARTS: ClassVar[frozenset[PartName]] = frozenset({"requests"})
    GUIDE = help.REQUESTS

    session: str | None = None
    """Shows only this session's, if set."""

    def table(self, view: View) -> Table:
        """Rows of requests."""
        return requests_table(view, self.session)


class HistoryPanel(ListPanel):
    """Generations of the residency set."""

    TITLE = "Generations"
    PARTS: ClassVar[frozenset[PartName]] = frozenset({"plan"})
    GUIDE = help.HISTORY

    def table(self, view: View) -> Table:
        """Rows of generations."""
        return history_table(view)


class LogsPanel(ListPanel):
    """Log lines."""

    TITLE = "Logs"
    PARTS: ClassVar[frozenset[PartName]] = frozenset({"logs"})
    HAS_HEADER = False
    GUIDE = help.LOGS

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "follow", "follow", show=False),
    ]

    filter_text: str = ""
    follows: bool = True

    def compose_lines(self, view: View, width: int, height: int) -> list[Line]:
        """The lines around the cursor; the newest ones while it follows."""
        if self.follows:
            self._key, self._at, self._top = None, 10**9, 10**9
        return super().compose_lines(view, width, height)

    _made: tuple[tuple[object, ...], Table] | None = None
    """What the rows were last made of, and they."""

    def table(self, view: View) -> Table:
        """Rows of lines, made anew only for other lines: there are many, and they are read every second."""
        source = (view.reading.logs if view.reading else None, view.link, self.filter_text)
        if self._made is None or self._made[0] != source:
            self._made = (source, logs_table(view, self.filter_text))
        return self._made[1]

    def subtitle(self, view: View) -> str:
        """What is shown of the log."""
        notes = [
            view.log_source if view.log_source == "daemon" else "engine",
            "following" if self.follows else "f to follow",
        ]
        if self.filter_text:
            notes.append("filtered")
        return "  ".join([*notes, super().subtitle(view)]).rstrip()

    def chosen_line(self) -> int | None:
        """No line is chosen while the newest one is followed."""
        return None if self.follows else super().chosen_line()

    def text_at_cursor(self) -> str:
        """The line under the cursor, as it was logged."""
        found = found_lines(self._view, self.filter_text) if self._view is not None else ()
        return found[self._at] if self._at < len(found) else ""

    def action_move(self, rows: int) -> None:
        """Moving up stops following."""
        self.follows = False
        super().action_move(rows)

    def action_follow(self) -> None:
        """Follow the newest line, or stay."""
        self.follows = not self.follows
        self.update_lines()
