"""The map of experts with its cursor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.events import Click

from ostinatod.client_dashboard import PartName
from ostinatod.client_dashboard_values import Unavailable
from ostinatod.tui.palette import Palette
from ostinatod.tui.view import heat, help
from ostinatod.tui.view.empty import centred, missing, not_ready, unreachable
from ostinatod.tui.view.experts import PHASES, Experts, Phase
from ostinatod.tui.view.heat import Grid, HeatOptions, Order, Place
from ostinatod.tui.view.lines import EMPTY, Line
from ostinatod.tui.view.skew import skew_lines
from ostinatod.tui.view.state import View
from ostinatod.tui.widgets.panel import Panel

_ROWS_BELOW = 4
"""The axis, the legend and two lines about the cursor."""
_TITLE_MARGIN = 4
"""Cells of the border that are not a title's."""


class HeatPanel(Panel):
    """Layers down, experts across."""

    TITLE = "Experts"
    PARTS: ClassVar[frozenset[PartName]] = frozenset({"routes", "residency"})
    GUIDE = help.EXPERTS

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1, 0)", "layer up", show=False),
        Binding("down,j", "move(1, 0)", "layer down", show=False),
        Binding("left,h", "move(0, -1)", "expert left", show=False),
        Binding("right", "move(0, 1)", "expert right", show=False),
        Binding("shift+up", "move(-8, 0)", "layers up", show=False),
        Binding("shift+down", "move(8, 0)", "layers down", show=False),
        Binding("shift+left", "move(0, -8)", "experts left", show=False),
        Binding("shift+right", "move(0, 8)", "experts right", show=False),
        Binding("home", "move(0, -100000)", "first expert", show=False),
        Binding("end", "move(0, 100000)", "last expert", show=False),
        Binding("o", "order", "order", show=False),
        Binding("c", "phase", "phase", show=False),
        Binding("escape", "leave", "no cursor", show=False),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.options = HeatOptions()
        self._experts: Experts | None = None
        self._grid: Grid | None = None
        self._drawn: tuple[tuple[object, ...], list[Line]] = ((), [])

    def paint(self, palette: Palette) -> None:
        """Two layers share a line only where colour tells them apart."""
        self._change(has_colour=palette.has_colour)
        super().paint(palette)

    def compose_lines(self, view: View, width: int, height: int) -> list[Line]:
        """The map, its axis and legend, and what is under the cursor."""
        if (told := unreachable(view, width, in_full=True) or not_ready(view, width)) is not None:
            self._forget()
            return centred(told, height)
        experts = view.experts
        if isinstance(experts, Unavailable):
            self._forget()
            return centred(missing(experts, view, width), height)
        if experts is not self._experts or self._grid is None:
            self._take(experts)
        assert self._grid is not None
        state = (experts, self.options, width, height, view.symbols.name)
        if self._drawn[0] != state:
            self._drawn = (state, self._draw(experts, self._grid, view, width, height))
        return self._drawn[1]

    def subtitle(self, view: View) -> str:
        """Size and routes."""
        room = self.content_size.width - _TITLE_MARGIN
        return heat.summary(self._experts, self.options, room, view.symbols) if self._experts else ""

    def action_move(self, rows: int, positions: int) -> None:
        """Move the cursor; the first key only shows it."""
        if self._experts is not None:
            cursor = self.options.cursor
            place = heat.moved(cursor, rows, positions, self._experts.shape) if cursor else Place()
            self._change(cursor=place)

    def action_order(self) -> None:
        """By rank or by id; the cursor stays on its expert."""
        order: Order = "id" if self.options.order == "rank" else "rank"
        self._rearrange(order, self.options.phase)

    def action_phase(self) -> None:
        """Count the next phase; the cursor stays on its expert."""
        phase: Phase = PHASES[(PHASES.index(self.options.phase) + 1) % len(PHASES)]
        self._rearrange(self.options.order, phase)

    def action_leave(self) -> None:
        """Take the cursor away."""
        self._change(cursor=None)

    def on_click(self, event: Click) -> None:
        """Put the cursor on a cell."""
        if self._experts is None:
            return
        width, height = self.content_size
        offset = event.get_content_offset(self)
        if offset is None:
            return
        place = heat.place_at(self._experts, self.options, offset.x, offset.y, width, self._map_height(height))
        if place is not None:
            self._change(cursor=place)

    def _draw(self, experts: Experts, grid: Grid, view: View, width: int, height: int) -> list[Line]:
        symbols, options = view.symbols, self.options
        lines = heat.heat_lines(experts, grid, options, width, self._map_height(height), symbols)
        if height < 6:
            return lines
        spare = height - len(lines) - _ROWS_BELOW
        lines.append(heat.axis(experts, options, width, symbols))
        lines.append(heat.legend(options, width, symbols, has_set=experts.hot is not None))
        lack = experts.routes_missing or experts.residency_missing
        if options.cursor is None and lack is not None:
            lines += (*missing(lack, view, width), EMPTY)[:2]
        else:
            lines += heat.readout(experts, grid, options, symbols)
        return [*lines, *skew_lines(experts, options.phase, width, spare, symbols)]

    def _map_height(self, height: int) -> int:
        return height - _ROWS_BELOW if height >= 6 else height

    def _take(self, experts: Experts) -> None:
        shape = self._experts.shape if self._experts else None
        self._experts = experts
        self._grid = heat.grid(experts, self.options.order, self.options.phase)
        if shape != experts.shape:
            self.options = replace(self.options, cursor=None)

    def _forget(self) -> None:
        self._experts = self._grid = None
        self._drawn = ((), [])

    def _rearrange(self, order: Order, phase: Phase) -> None:
        if self._experts is None or self._grid is None:
            return
        cursor = self.options.cursor
        expert = int(self._grid.experts[cursor.row, cursor.position]) if cursor else None
        self._grid = heat.grid(self._experts, order, phase)
        if cursor and expert is not None:
            position = int((self._grid.experts[cursor.row] == expert).argmax())
            cursor = Place(cursor.row, position)
        self.options = replace(self.options, order=order, phase=phase, cursor=cursor)
        self.update_lines()

    def _change(self, **changes: Any) -> None:
        self.options = replace(self.options, **changes)
        self.update_lines()
