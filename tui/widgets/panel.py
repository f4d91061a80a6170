"""A bordered area whose lines a pure function composes. Only lines that changed are sent to the terminal."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.events import Resize
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ostinatod.client_dashboard import PartName
from ostinatod.tui.palette import Palette
from ostinatod.tui.view.help import PanelHelp
from ostinatod.tui.view.inert import ascii_only
from ostinatod.tui.view.lines import EMPTY, Line, fit
from ostinatod.tui.view.state import View


class Lines(Widget):
    """Shows lines; a line that is chosen is shown as such. `paint` and `show` may be called in any order."""

    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._view: View | None = None
        self._palette: Palette | None = None
        self._composed: list[Line] | None = None
        self._lines: list[Line] = []
        self._chosen: int | None = None
        self._styles_of: dict[tuple[str, bool], Style] = {}

    def compose_lines(self, view: View, width: int, height: int) -> list[Line]:
        """The lines for that many cells; at most `height` of them are shown."""
        raise NotImplementedError

    def chosen_line(self) -> int | None:
        """The line under the cursor, after `compose_lines`."""
        return None

    def show(self, view: View) -> None:
        """Show another moment."""
        self._view = view
        self.update_lines()

    def paint(self, palette: Palette) -> None:
        """Show it in another theme."""
        self._palette = palette
        self._styles_of = {}
        self.refresh()

    def update_lines(self) -> None:
        """Compose again and send what has changed."""
        width, height = self.content_size
        if self._view is None or width <= 0 or height <= 0:
            return
        composed = self.compose_lines(self._view, width, height)
        chosen = self.chosen_line()
        if composed is self._composed and chosen == self._chosen:
            return
        self._composed = composed
        lines = [fit(entry, width, self._view.symbols.ellipsis) for entry in composed[:height]]
        changed = [
            at
            for at in range(max(len(lines), len(self._lines)))
            if lines[at : at + 1] != self._lines[at : at + 1] or ((at == chosen) != (at == self._chosen))
        ]
        self._lines, self._chosen = lines, chosen
        if changed:
            self.refresh(*(Region(0, at, width, 1) for at in changed))

    def on_resize(self, event: Resize) -> None:
        """Compose for the new size."""
        self._composed, self._lines = None, []
        self.update_lines()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of the terminal."""
        width = self.content_size.width
        entry = self._lines[y] if y < len(self._lines) else EMPTY
        is_chosen = y == self._chosen
        segments = [Segment(self._text(part.text), self._style(part.role, is_chosen)) for part in entry]
        return Strip(segments).adjust_cell_length(width, self._style("text", is_chosen))

    def _text(self, text: str) -> str:
        return ascii_only(text) if self._palette is not None and self._palette.symbols.is_ascii else text

    def _style(self, role: str, is_chosen: bool) -> Style:
        key = (role, is_chosen)
        style = self._styles_of.get(key)
        if style is None:
            style = self.visual_style.rich_style
            if self._palette is not None:
                style += self._palette.style(role)
                if is_chosen:
                    style += self._palette.style("selected")
            self._styles_of[key] = style
        return style

    def notify_style_update(self) -> None:
        """Textual's call when this widget's styles have changed, as with the focus."""
        super().notify_style_update()
        self._styles_of = {}


class Panel(Lines, can_focus=True):
    """A titled area that can have the focus. `parts` is what it needs the daemon to tell."""

    TITLE: ClassVar[str] = ""
    PARTS: ClassVar[frozenset[PartName]] = frozenset()
    GUIDE: ClassVar[PanelHelp]

    def on_mount(self) -> None:
        """Set the title."""
        self.border_title = self.TITLE

    def subtitle(self, view: View) -> str:
        """A note for the lower border, of this package's own words."""
        return ""

    def update_lines(self) -> None:
        """Compose again, with the note."""
        super().update_lines()
        if self._view is not None:
            note = self.subtitle(self._view)
            note = ascii_only(note) if self._view.symbols.is_ascii else note
            if str(self.border_subtitle or "") != note:
                self.border_subtitle = note
