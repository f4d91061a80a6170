"""The panels without a cursor: memory, hit rates, latency, the proposal, one request; the lines at top and bottom."""

from __future__ import annotations

from typing import ClassVar

from ostinatod.client_dashboard import PartName
from ostinatod.tui.view import help
from ostinatod.tui.view.empty import centred, sentence
from ostinatod.tui.view.header import header_lines
from ostinatod.tui.view.hits import hits_lines, hits_subtitle
from ostinatod.tui.view.keys import Keys, key_bar
from ostinatod.tui.view.latency import latency_lines, latency_subtitle
from ostinatod.tui.view.learning import proposal_lines
from ostinatod.tui.view.lines import Line
from ostinatod.tui.view.memory import memory_lines, memory_subtitle
from ostinatod.tui.view.state import View
from ostinatod.tui.view.traffic import find_request, request_detail
from ostinatod.tui.widgets.panel import Lines, Panel


class HeaderLines(Lines):
    """The daemon and the model in focus."""

    def compose_lines(self, view: View, width: int, height: int) -> list[Line]:
        """Two lines."""
        return header_lines(view, width)


class KeyBar(Lines):
    """The presets, and the keys that work everywhere."""

    preset: str = ""
    keys: Keys = ()
    """Of the panel with the focus."""

    def compose_lines(self, view: View, width: int, height: int) -> list[Line]:
        """One line."""
        return [key_bar(self.preset, self.keys, width, view.symbols)]


class MemoryPanel(Panel):
    """Memory by use."""

    TITLE = "Memory"
    PARTS: ClassVar[frozenset[PartName]] = frozenset({"profile"})
    GUIDE = help.MEMORY

    def compose_lines(self, view: View, width: int, height: int) -> list[Line]:
        """Bars with legends."""
        return memory_lines(view, width, height)

    def subtitle(self, view: View) -> str:
        """The unit."""
        return memory_subtitle(view)


class HitsPanel(Panel):
    """Hit rates."""

    TITLE = "Hit rates"
    PARTS: ClassVar[frozenset[PartName]] = frozenset({"routes", "residency", "plan", "requests"})
    GUIDE = help.HITS

    def compose_lines(self, view: View, width: int, height: int) -> list[Line]:
        """Measured, then planned."""
        return hits_lines(view, width, height)

    def subtitle(self, view: View) -> str:
        """What a key would change."""
        return hits_subtitle(view)


class LatencyPanel(Panel):
    """How long requests took."""

    TITLE = "Latency"
    PARTS: ClassVar[frozenset[PartName]] = frozenset({"requests"})
    GUIDE = help.LATENCY

    def compose_lines(self, view: View, width: int, height: int) -> list[Line]:
        """A line per kind."""
        return latency_lines(view, width, height)

    def subtitle(self, view: View) -> str:
        """How many requests."""
        return latency_subtitle(view)


class ProposalPanel(Panel):
    """What planning proposes."""

    TITLE = "Proposal"
    PARTS: ClassVar[frozenset[PartName]] = frozenset({"plan"})
    GUIDE = help.PROPOSAL

    def compose_lines(self, view: View, width: int, height: int) -> list[Line]:
        """Promises and keys."""
        return proposal_lines(view, width, height)


class DetailPanel(Panel):
    """One request."""

    TITLE = "Request"
    PARTS: ClassVar[frozenset[PartName]] = frozenset({"requests"})
    GUIDE = help.REQUEST

    request_id: str | None = None

    def compose_lines(self, view: View, width: int, height: int) -> list[Line]:
        """Its figures, and why its prefix broke."""
        request = find_request(view, self.request_id)
        if request is None:
            return centred(sentence("No request is chosen.", width, "faint"), height)
        return request_detail(request, view, width)
