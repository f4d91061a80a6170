"""The dashboard's one screen: the header, the panels of a preset, and the line of keys."""

from __future__ import annotations

from typing import TypeVar

from textual.app import ComposeResult
from textual.containers import Container
from textual.events import DescendantFocus, Resize
from textual.screen import Screen

from ostinatod.client_dashboard import PartName
from ostinatod.tui.palette import Palette
from ostinatod.tui.screens import presets
from ostinatod.tui.screens.presets import Preset
from ostinatod.tui.view.state import View
from ostinatod.tui.widgets.lists import RequestsPanel
from ostinatod.tui.widgets.panel import Lines, Panel
from ostinatod.tui.widgets.panels import DetailPanel, HeaderLines, KeyBar

P = TypeVar("P", bound=Panel)

SMALL_WIDTH, SMALL_HEIGHT = 110, 32
"""Below either, panels that other presets also show make room for the rest."""
LARGE_WIDTH, LARGE_HEIGHT = 160, 48

_ALWAYS: frozenset[PartName] = frozenset({"routes", "residency", "listings"})
"""What the header and the names of models need."""


class Dashboard(Screen[None]):
    """Shows one preset at a time; those that were never shown are not composed."""

    def __init__(self, preset: str, palette: Palette) -> None:
        super().__init__()
        self.preset = preset
        self._palette = palette
        self._presets: dict[str, Preset] = {}
        self._shown: View | None = None

    def compose(self) -> ComposeResult:
        """Everything but the presets."""
        yield HeaderLines(id="header")
        yield Container(id="body")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Show the first preset."""
        self.paint(self._palette)
        self.choose(self.preset)

    def on_resize(self, event: Resize) -> None:
        """Choose a layout for the size."""
        width, height = event.size
        self.set_class(width < SMALL_WIDTH or height < SMALL_HEIGHT, "-small")
        self.set_class(width >= LARGE_WIDTH and height >= LARGE_HEIGHT, "-large")

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Say what keys do in the panel with the focus."""
        keys = self.query_one(KeyBar)
        keys.keys = event.widget.GUIDE.bar if isinstance(event.widget, Panel) else ()
        keys.update_lines()

    def choose(self, preset: str) -> None:
        """Show that preset."""
        self.preset = preset
        is_new = preset not in self._presets
        if is_new:
            self._presets[preset] = presets.KINDS[preset](id=preset)
        for name, known in self._presets.items():
            known.set_class(name == preset, "-on")
        self.query_one(KeyBar).preset = preset
        for panel in self.panels():
            panel.paint(self._palette)
        if self._shown is not None:
            self.show(self._shown)
        if is_new:
            self.query_one("#body").mount(self._presets[preset])
        else:
            self._presets[preset].panels[0].focus()

    def show(self, view: View) -> None:
        """Show another moment."""
        self._shown = view
        requests = self.panel(RequestsPanel)
        for lines in (self.query_one(HeaderLines), *self.panels(), self.query_one(KeyBar)):
            if isinstance(lines, DetailPanel) and requests is not None:
                lines.request_id = requests.cursor_key
            lines.show(view)

    def paint(self, palette: Palette) -> None:
        """Show it in another theme."""
        self._palette = palette
        self.set_class(palette.symbols.is_ascii, "-ascii")
        self.set_class(not palette.has_colour, "-mono")
        for lines in self.query(Lines):
            lines.paint(palette)

    def panels(self) -> tuple[Panel, ...]:
        """The panels of the preset that is shown."""
        return self._presets[self.preset].panels if self.preset in self._presets else ()

    def panel(self, kind: type[P]) -> P | None:
        """The panel of a kind in the preset that is shown."""
        return next((panel for panel in self.panels() if isinstance(panel, kind)), None)

    def parts(self) -> frozenset[PartName]:
        """What the panels on the screen need."""
        return _ALWAYS.union(*(panel.PARTS for panel in self.panels()))
