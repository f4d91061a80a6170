"""The presets: which panels are on the screen together."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical

from ostinatod.tui.widgets.heat_panel import HeatPanel
from ostinatod.tui.widgets.lists import HistoryPanel, LogsPanel, ModelsPanel, RequestsPanel, SessionsPanel
from ostinatod.tui.widgets.panel import Panel
from ostinatod.tui.widgets.panels import DetailPanel, HitsPanel, LatencyPanel, MemoryPanel, ProposalPanel


class Preset(Container):
    """Panels that are shown together; `FIRST` is the one that has the focus at first."""

    FIRST: ClassVar[type[Panel]]


class Overview(Preset):
    """What is loaded, where its experts are, how well that works, and how long answers take."""

    FIRST = ModelsPanel

    def compose(self) -> ComposeResult:
        """Three bands."""
        with Horizontal(classes="top"):
            yield ModelsPanel()
            yield MemoryPanel()
        with Horizontal(classes="middle"):
            yield HeatPanel()
            with Vertical(classes="side"):
                yield HitsPanel()
                yield LatencyPanel()
        yield RequestsPanel(classes="bottom")


class Experts(Preset):
    """The map of experts as large as possible."""

    FIRST = HeatPanel

    def compose(self) -> ComposeResult:
        """The map, and what it amounts to."""
        with Horizontal():
            yield HeatPanel()
            with Vertical(classes="side"):
                yield HitsPanel()
                yield MemoryPanel()


class Requests(Preset):
    """Where the time of requests goes."""

    FIRST = RequestsPanel

    def compose(self) -> ComposeResult:
        """Latency over sessions over requests, and the request under the cursor."""
        with Horizontal(classes="top"):
            yield LatencyPanel()
            yield SessionsPanel()
        with Horizontal(classes="middle"):
            yield RequestsPanel()
            yield DetailPanel()


class Learning(Preset):
    """What was learned, what it did, and what comes next."""

    FIRST = HistoryPanel

    def compose(self) -> ComposeResult:
        """The proposal beside the hit rates, over the history."""
        with Horizontal(classes="top"):
            yield ProposalPanel()
            yield HitsPanel()
        yield HistoryPanel()


class Logs(Preset):
    """The logs."""

    FIRST = LogsPanel

    def compose(self) -> ComposeResult:
        """One panel."""
        yield LogsPanel()
