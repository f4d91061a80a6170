"""Bars and sparklines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ostinatod.tui.view.lines import Line, Span
from ostinatod.tui.view.symbols import Symbols


def meter(part: float | None, width: int, symbols: Symbols, role: str = "accent") -> Line:
    """A bar filled to `part` (0 to 1); an unknown part is an empty bar."""
    filled = 0 if part is None else round(min(max(part, 0.0), 1.0) * width)
    if part and not filled:
        filled = 1
    return (Span(symbols.full * filled, role), Span(symbols.rest * (width - filled), "rest"))


def sparkline(
    values: Sequence[float | None], width: int, symbols: Symbols, role: str = "spark", *, from_zero: bool = True
) -> Line:
    """The last `width` values, oldest first, from 0 or their smallest to their largest; unknown ones are gaps.

    The highest glyph is left out, so that a line above is kept apart.
    """
    if width <= 0:
        return ()
    shown = list(values[-width:])
    known = [value for value in shown if value is not None]
    bottom = 0.0 if from_zero else min(known, default=0.0)
    height, steps = max(known, default=0.0) - bottom, len(symbols.spark) - 2

    def glyph(value: float | None) -> str:
        if value is None:
            return " "
        return symbols.spark[round((value - bottom) / height * steps) if height > 0 else 0]

    text = "".join(glyph(value) for value in shown)
    return (Span(" " * (width - len(text))), Span(text, role))


def graph(values: Sequence[float], width: int, height: int, symbols: Symbols, role: str = "spark") -> list[Line]:
    """A sparkline of several lines, the top one first, from 0; the highest glyph is left out of a single one."""
    shown = list(values[-width:]) if width > 0 else []
    top, steps = max(shown, default=0.0), len(symbols.spark)
    most = height * steps - (height == 1)
    # One step for zero, so that every value leaves a mark on the lowest line.
    eighths = [1 + round(value / top * (most - 1)) if top > 0 else 1 for value in shown]
    lines: list[Line] = []
    for row in range(height - 1, -1, -1):
        filled = (min(max(eighth - row * steps, 0), steps) for eighth in eighths)
        text = "".join(symbols.spark[part - 1] if part else " " for part in filled)
        lines.append((Span(" " * max(0, width - len(text))), Span(text, role)))
    return lines


def stacked(parts: Sequence[tuple[str, float]], total: float, width: int) -> list[tuple[str, int]]:
    """Cells of each named part of `total`, which add up to `width`; a part above nothing gets at least one cell.

    Largest remainders decide, so that the widths are as near as whole cells can be.
    """
    if total <= 0 or width <= 0:
        return []
    exact = [max(0.0, size) / total * width for _, size in parts]
    cells = [max(int(value), 1 if value > 0 else 0) for value in exact]
    by_remainder = sorted(range(len(cells)), key=lambda at: exact[at] - cells[at])
    while sum(cells) > width:
        largest = max(range(len(cells)), key=lambda at: cells[at])
        cells[largest] -= 1
    while sum(cells) < width and by_remainder:
        cells[by_remainder.pop()] += 1
    return [(name, size) for (name, _), size in zip(parts, cells, strict=True) if size]
