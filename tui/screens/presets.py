"""The presets: which panels are on the screen together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical

from ostinatod.tui.widgets.heat_panel import HeatPanel
from ostinatod.tui.widgets.lists import HistoryPanel, LogsPanel, ModelsPanel, RequestsPanel, SessionsPanel
from ostinatod.tui.widgets.panel import Panel
from ostinatod.tui.widgets.panels import DetailPanel, HitsPanel, LatencyPanel, MemoryPanel, ProposalPanel


class Preset(Container):
    """Panels that are shown together. They exist from the start, and come onto the screen when the preset does."""

    KINDS: ClassVar[tuple[type[Panel], ...]]
    """The panels; the first one has the focus at first."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, classes="preset")
        self.panels = tuple(kind() for kind in self.KINDS)

    def on_mount(self) -> None:
        """Give the first panel the focus."""
        self.panels[0].focus()


class Overview(Preset):
    """What is loaded, where its experts are, how well that works, and how long answers take."""

    KINDS = (ModelsPanel, MemoryPanel, HeatPanel, HitsPanel, LatencyPanel, RequestsPanel)

    def compose(self) -> ComposeResult:
        """Three bands."""
        models, memory, heat, hits, latency, requests = self.panels
        yield Horizontal(models, memory, classes="top")
        yield Horizontal(heat, Vertical(hits, latency, classes="side"), classes="middle")
        yield requests


class Experts(Preset):
    """The map of experts as large as possible."""

    KINDS = (HeatPanel, HitsPanel, MemoryPanel, LatencyPanel)

    def compose(self) -> ComposeResult:
        """The map, and what it amounts to."""
        heat, hits, memory, latency = self.panels
        yield Horizontal(heat, Vertical(hits, memory, latency, classes="side"))


class Requests(Preset):
    """Where the time of requests goes."""

    KINDS = (RequestsPanel, DetailPanel, LatencyPanel, SessionsPanel)

    def compose(self) -> ComposeResult:
        """Latency over sessions over requests, and the request under the cursor."""
        requests, detail, latency, sessions = self.panels
        yield Horizontal(latency, sessions, classes="top")
        yield Horizontal(requests, detail, classes="middle")


class Learning(Preset):
    """What was learned, what it did, and what comes next."""

    KINDS = (HistoryPanel, HeatPanel, ProposalPanel, HitsPanel)

    def compose(self) -> ComposeResult:
        """The proposal beside the hit rates, over the history; in large terminals the map beside it."""
        history, heat, proposal, hits = self.panels
        yield Horizontal(proposal, hits, classes="top")
        yield Horizontal(history, heat, classes="bottom")


class Logs(Preset):
    """The logs."""

    KINDS = (LogsPanel,)

    def compose(self) -> ComposeResult:
        """One panel."""
        yield from self.panels


KINDS: Mapping[str, type[Preset]] = {
    "overview": Overview,
    "experts": Experts,
    "requests": Requests,
    "learning": Learning,
    "logs": Logs,
}
"""Every preset by its name."""
