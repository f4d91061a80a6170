"""A panel with rows, a cursor that stays with its row, and a window that follows the cursor."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click, MouseScrollDown, MouseScrollUp
from textual.message import Message

from ostinatod.tui.view.lines import Line
from ostinatod.tui.view.state import View
from ostinatod.tui.view.table import Row, Table, body, header, layout
from ostinatod.tui.widgets.panel import Panel


class ListPanel(Panel):
    """Rows of a table."""

    HAS_HEADER: ClassVar[bool] = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home,g", "move(-100000)", "first", show=False),
        Binding("end,G", "move(100000)", "last", show=False),
        Binding("enter", "choose", "open", show=False),
    ]

    class Chosen(Message):
        """A row was opened with enter or a click."""

        def __init__(self, panel: ListPanel, key: str) -> None:
            super().__init__()
            self.panel = panel
            self.key = key

        @property
        def control(self) -> ListPanel:
            """The panel of the row."""
            return self.panel

    class Moved(Message):
        """The cursor went to another row."""

        def __init__(self, panel: ListPanel, key: str | None) -> None:
            super().__init__()
            self.panel = panel
            self.key = key

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._rows: tuple[Row, ...] = ()
        self._key: str | None = None
        self._at = 0
        self._top = 0
        self._height = 1

    def table(self, view: View) -> Table:
        """The rows of a moment."""
        raise NotImplementedError

    @property
    def cursor_key(self) -> str | None:
        """The key of the row under the cursor."""
        return self._rows[self._at].key if self._rows else None

    def compose_lines(self, view: View, width: int, height: int) -> list[Line]:
        """The titles, and the rows around the cursor."""
        table = self.table(view)
        self._rows = table.rows
        self._find_cursor()
        if not table.rows:
            return list(table.empty)
        self._height = max(1, height - self.HAS_HEADER)
        self._scroll()
        widths = layout(table, width)
        shown = table.rows[self._top : self._top + self._height]
        rows = [body(table, row, widths, view.symbols) for row in shown]
        return [header(table, widths, view.symbols), *rows] if self.HAS_HEADER else rows

    def chosen_line(self) -> int | None:
        """The cursor's line, while the panel has the focus."""
        return self._at - self._top + self.HAS_HEADER if self._rows and self.has_focus else None

    def subtitle(self, view: View) -> str:
        """Where the window is, if not everything is shown."""
        shown = min(len(self._rows) - self._top, self._height)
        if len(self._rows) <= shown:
            return ""
        return f"{self._top + 1}-{self._top + shown} of {len(self._rows)}"

    def action_move(self, rows: int) -> None:
        """Move the cursor."""
        if self._rows:
            self._at = min(max(self._at + rows, 0), len(self._rows) - 1)
            self._key = self._rows[self._at].key
            self.update_lines()
            self.post_message(self.Moved(self, self._key))

    def action_page(self, pages: int) -> None:
        """Move the cursor by what the window holds."""
        self.action_move(pages * self._height)

    def action_choose(self) -> None:
        """Open the row under the cursor."""
        if (key := self.cursor_key) is not None:
            self.post_message(self.Chosen(self, key))

    def watch_has_focus(self, has_focus: bool) -> None:
        """Show the cursor, or hide it."""
        super().watch_has_focus(has_focus)
        self.update_lines()

    def on_click(self, event: Click) -> None:
        """Put the cursor on a row; a second click opens it."""
        row = self._top + event.y - self.gutter.top - self.HAS_HEADER
        if 0 <= row < len(self._rows):
            self.action_move(row - self._at)
            if event.chain > 1:
                self.action_choose()

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """Move with the wheel."""
        self.action_move(3)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """Move with the wheel."""
        self.action_move(-3)

    def _find_cursor(self) -> None:
        """Keep the cursor on its row; where that is gone, on its place."""
        found = next((at for at, row in enumerate(self._rows) if row.key == self._key), None) if self._key else None
        self._at = found if found is not None else min(self._at, max(len(self._rows) - 1, 0))
        if self._rows and self._key is not None:
            self._key = self._rows[self._at].key

    def _scroll(self) -> None:
        last_top = max(len(self._rows) - self._height, 0)
        self._top = min(max(self._top, self._at - self._height + 1), self._at, last_top)
