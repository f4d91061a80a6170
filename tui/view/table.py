"""Tables: columns that share a width, the least important left out where there is no room. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ostinatod.tui.view.lines import Line, Span, fit, right, width_of
from ostinatod.tui.view.symbols import Symbols

GAP = 2
MINOR = 3


@dataclass(frozen=True, slots=True)
class Column:
    """One column: as wide as its widest cell, at most `most`; one that `grows` takes what room is left over."""

    title: str
    align: Literal["left", "right"] = "left"
    importance: int = 0
    """Where there is no room, the columns with the smallest go first."""
    least: int = 4
    most: int = 24
    grows: bool = False
    comfort: int = 0
    """Cells that a column that grows has before columns of importance `MINOR` or less are shown beside it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row; `key` tells it from the others over time."""

    key: str
    cells: tuple[Span | Line, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows; `empty` is said where there is no row."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    empty: tuple[Line, ...] = ()


def layout(table: Table, width: int) -> list[tuple[int, int]]:
    """(column, cells) of every column that is shown."""
    natural = [
        max(
            [
                len(column.title),
                column.least,
                *(min(width_of(spans_of(row.cells[at])), column.most) for row in table.rows),
            ]
        )
        for at, column in enumerate(table.columns)
    ]
    shown = list(range(len(table.columns)))
    while len(shown) > 1:
        first = min(shown, key=lambda at: (table.columns[at].importance, -at))
        comfort = sum(_comfort(table, natural, at) for at in shown) if table.columns[first].importance <= MINOR else 0
        if _needed(table, natural, shown) + comfort <= width:
            break
        shown.remove(first)
    widths = {at: natural[at] for at in shown}
    spare = width - _needed(table, natural, shown)
    for at in shown:
        if table.columns[at].grows:
            widths[at] = max(table.columns[at].least, natural[at] - _shrinkable(table, natural, at) + max(spare, 0))
            spare = 0
    return [(at, widths[at]) for at in shown]


def header(table: Table, widths: Sequence[tuple[int, int]], symbols: Symbols) -> Line:
    """The titles of the columns."""
    cells = [(Span(table.columns[at].title, "head"),) for at, _ in widths]
    return _joined(table, widths, cells, symbols)


def body(table: Table, row: Row, widths: Sequence[tuple[int, int]], symbols: Symbols) -> Line:
    """One row."""
    return _joined(table, widths, [spans_of(row.cells[at]) for at, _ in widths], symbols)


def spans_of(cell: Span | Line) -> Line:
    """A cell as a line."""
    return (cell,) if isinstance(cell, Span) else cell


def _needed(table: Table, natural: Sequence[int], shown: Sequence[int]) -> int:
    return sum(natural[at] - _shrinkable(table, natural, at) for at in shown) + GAP * (len(shown) - 1)


def _shrinkable(table: Table, natural: Sequence[int], at: int) -> int:
    """Cells that a growing column gives up before any column is left out."""
    column = table.columns[at]
    return natural[at] - max(column.least, len(column.title)) if column.grows else 0


def _comfort(table: Table, natural: Sequence[int], at: int) -> int:
    """Cells that a growing column would like beyond its least."""
    column = table.columns[at]
    return max(0, min(column.comfort, natural[at]) - column.least) if column.grows else 0


def _joined(table: Table, widths: Sequence[tuple[int, int]], cells: Sequence[Line], symbols: Symbols) -> Line:
    joined: list[Span] = []
    for (at, width), cell in zip(widths, cells, strict=True):
        if joined:
            joined.append(Span(" " * GAP))
        place = right if table.columns[at].align == "right" else fit
        joined.extend(place(cell, width, symbols.ellipsis))
    return tuple(joined)
