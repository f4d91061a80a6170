"""Lines of a panel: spans of text, each with the role that a theme gives a colour. Widths are terminal cells.

Spans are made with `span`, which makes their text inert, or `mark` for text that is this package's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from ostinatod.tui.view.inert import inert


class Span(NamedTuple):
    """Text in one style."""

    text: str
    role: str = "text"


Line = tuple[Span, ...]
EMPTY: Line = ()


def span(text: object, role: str = "text") -> Span:
    """A span of text from anywhere."""
    return Span(inert(str(text)), role)


def mark(text: str, role: str = "text") -> Span:
    """A span of this package's own text, which is not checked."""
    return Span(text, role)


def line(*parts: Span | str) -> Line:
    """A line of spans; plain strings are this package's own text."""
    return tuple(Span(part) if isinstance(part, str) else part for part in parts)


def cells_of(text: str) -> int:
    """Cells that the text takes."""
    # Nearly all text is ASCII, for which no table need be asked; this is the busiest line of the dashboard.
    return len(text) if text.isascii() else cell_len(text)


def width_of(parts: Iterable[Span]) -> int:
    """Cells that the spans take."""
    return sum([cells_of(part.text) for part in parts])


def cut(text: str, width: int, ellipsis: str) -> str:
    """`text` in at most `width` cells, ending in `ellipsis` where something was cut off."""
    if cells_of(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + ellipsis if width > 0 else ""


def fit(parts: Line, width: int, ellipsis: str) -> Line:
    """The line in exactly `width` cells: cut off, or filled with spaces."""
    left, fitted = width, []
    for part in parts:
        cells = cells_of(part.text)
        if cells > left:
            shorter = cut(part.text, left, ellipsis)
            fitted.append(Span(shorter, part.role))
            left -= cells_of(shorter)
            break
        fitted.append(part)
        left -= cells
    if left > 0:
        fitted.append(Span(" " * left))
    return tuple(fitted)


def right(parts: Line, width: int, ellipsis: str) -> Line:
    """The line in exactly `width` cells, at their right end."""
    free = width - width_of(parts)
    return (Span(" " * free), *parts) if free > 0 else fit(parts, width, ellipsis)


def ends(left: Line, at_right: Line, width: int, ellipsis: str) -> Line:
    """Two lines in one, at either end; the left one gives way, and the right one is left out if it has no room."""
    need = width_of(at_right)
    if not at_right or need + 8 > width:
        return fit(left, width, ellipsis)
    return (*fit(left, width - need - 1, ellipsis), Span(" "), *at_right)


def wrap(text: str, width: int) -> list[str]:
    """Words of `text` on lines of at most `width` cells; longer words are cut into pieces."""
    rows, row = [], ""
    for word in inert(text).split():
        while cells_of(word) > width:
            if row:
                rows.append(row)
                row = ""
            piece = set_cell_size(word, width).rstrip()
            rows.append(piece)
            word = word[len(piece) :]
        if row and cells_of(row) + 1 + cells_of(word) > width:
            rows.append(row)
            row = word
        else:
            row = f"{row} {word}" if row else word
    return [*rows, row] if row else rows
