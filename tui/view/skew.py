"""How uneven routing is: the share of all routes that the busiest experts take, and what the set in use makes of it.

The curve is what the best set of every size would cover, planned in hindsight from the same counts (Section 3.1); no
set can lie above it. Where experts are routed to evenly it is a straight line, and no set helps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinatod.tui.view.experts import Experts, Phase
from ostinatod.tui.view.figures import share
from ostinatod.tui.view.heat import COVERAGE, GUTTER
from ostinatod.tui.view.lines import EMPTY, Line, Span, fit, line, mark, width_of
from ostinatod.tui.view.symbols import Symbols

LEAST = 8
"""Lines that the curve needs with its words."""
_TALLEST = 14


def skew_lines(experts: Experts, phase: Phase, width: int, height: int, symbols: Symbols) -> list[Line]:
    """The curve with its words, in at most `height` lines; nothing where that is too few or nothing was routed."""
    counts = np.sort(experts.counts(phase), axis=None)[::-1]
    columns, tall = width - GUTTER - COVERAGE, min(height - 3, _TALLEST)
    if height < LEAST or columns < 20 or not counts.sum():
        return []
    taken = np.concatenate(([0.0], np.cumsum(counts) / counts.sum()))
    ends = (np.arange(columns) + 1) * counts.size // columns
    steps = len(symbols.spark)
    heights = np.maximum(np.rint(taken[ends] * tall * steps).astype(int), 1)
    hot_share = experts.hot_share()
    split = 0 if hot_share is None else max(1, round(hot_share * columns))
    roles = ("hot4", "cold3") if hot_share is not None else ("heat4", "heat4")
    lines: list[Line] = [EMPTY, _words(experts, phase, taken, hot_share, width, symbols)]
    for row in range(tall - 1, -1, -1):
        filled = np.clip(heights - row * steps, 0, steps)
        text = "".join(symbols.spark[part - 1] if part else " " for part in filled)
        label = "100 %" if row == tall - 1 else "0 %" if row == 0 else ""
        body = (Span(text[:split], roles[0]), Span(text[split:], roles[1]))
        lines.append((Span(" " * GUTTER), *body, mark(label.rjust(COVERAGE), "faint")))
    axis = f"busiest{'every expert'.rjust(columns - 7)}"
    return [*lines, fit(line(mark(" " * GUTTER), mark(axis, "dim")), width, symbols.ellipsis)]


def _words(
    experts: Experts, phase: Phase, taken: NDArray[np.float64], hot_share: float | None, width: int, symbols: Symbols
) -> Line:
    counted = "routes" if phase == "all" else f"{phase} routes"
    if hot_share is None:
        half = float(taken[(len(taken) - 1) // 2])
        text = f"the busier half of the experts takes {share(half, symbols)} of the {counted}"
        return fit(line(mark(" " * GUTTER), mark(text, "dim")), width, symbols.ellipsis)
    best = float(taken[round(hot_share * (len(taken) - 1))])
    covered = experts.coverage(phase)
    hot, got, most = (share(value, symbols) for value in (hot_share, covered, best))
    wordings = (
        (f"{hot} of the experts are hot and take ", f" of the {counted}; as many could take at most "),
        (f"{hot} of experts take ", " of routes; at most "),
        ("", " of routes are hot; at most "),
    )
    told = [
        line(mark(" " * GUTTER), mark(one, "dim"), mark(got, "hot6"), mark(two, "dim"), mark(most, "strong"))
        for one, two in wordings
    ]
    return fit(next((entry for entry in told if width_of(entry) <= width), told[-1]), width, symbols.ellipsis)
