"""The map of experts: layers down, experts across, ranked by the routes they take; hot and cold by colour and by glyph.

Where there is less room than cells, neighbouring layers and ranks share one: its heat is their mean, and it is hot when
at least half of its experts are. Heat is an expert's share of its layer's routes against an even share (1/E).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ostinatod.tui.view.experts import Experts, Phase
from ostinatod.tui.view.figures import count, exact
from ostinatod.tui.view.lines import Line, Span, fit, line, mark, width_of
from ostinatod.tui.view.symbols import Symbols

Order = Literal["rank", "id"]

LEVELS = np.array([1e-9, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0])
"""Bounds of the levels of heat 1 to 7, as multiples of an even share; level 0 took no route."""

GUTTER = 5
"""Cells for the number of a layer."""
TALLEST = 3
"""Lines that a layer takes where there are few."""
COVERAGE = 6
"""Cells for the coverage of a layer."""

_CURSOR = -1
_PAIR = 64
"""Two codes in one number: the upper layer's times this, and the lower one's."""
_CODES = 8
"""Codes of one cell: 0-7 cold by level, 8-15 hot, 16-23 of an unknown set."""


@dataclass(frozen=True, slots=True)
class Place:
    """A cell of the map: the row of a layer, and the position of an expert in the order shown."""

    row: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class HeatOptions:
    """How the map is shown. With colour two layers share a line where there are more layers than lines."""

    order: Order = "rank"
    phase: Phase = "all"
    cursor: Place | None = None
    has_colour: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The cells in the order shown.

    experts (L, E) ids; heat (L, E) multiples of an even share; hot (L, E) or None; coverage (L,) or None
    """

    experts: NDArray[np.intp]
    heat: NDArray[np.float64]
    hot: NDArray[np.bool_] | None
    coverage: NDArray[np.float64] | None


def grid(experts: Experts, order: Order, phase: Phase) -> Grid:
    """The experts of every layer in their order."""
    counts = experts.counts(phase)
    n_layers, n_experts = experts.shape
    if order == "rank":
        # Equal counts keep the order of their ids, so that the map does not flicker.
        ids = np.argsort(-counts, axis=1, kind="stable")
    else:
        ids = np.broadcast_to(np.arange(n_experts), (n_layers, n_experts))
    totals = counts.sum(axis=1, keepdims=True)
    heat = counts / np.maximum(totals, 1) * n_experts
    coverage = None
    if experts.hot is not None:
        with np.errstate(invalid="ignore"):
            coverage = np.where(
                totals[:, 0] > 0, (counts * experts.hot).sum(axis=1) / np.maximum(totals[:, 0], 1), np.nan
            )
    return Grid(
        experts=ids,
        heat=np.take_along_axis(heat, ids, axis=1),
        hot=None if experts.hot is None else np.take_along_axis(experts.hot, ids, axis=1),
        coverage=coverage,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """Which cells the layers and positions fall into.

    of_row (L,) and of_column (E,) the row and column of cells; `rows` of them, `step` to a line; a column of
    cells is `cells` wide, and a row `tall` lines high
    """

    of_row: NDArray[np.intp]
    of_column: NDArray[np.intp]
    rows: int
    across: int
    cells: int
    step: int
    tall: int


def geometry(experts: Experts, options: HeatOptions, width: int, height: int) -> Geometry | None:
    """How the map fits into `height` lines of `width` cells; None where it does not."""
    columns = width - GUTTER - _margin(experts)
    if columns < 8 or height < 1:
        return None
    n_layers, n_experts = experts.shape
    step = 2 if options.has_colour and n_layers > height else 1
    rows, across = min(n_layers, height * step), min(n_experts, columns)
    return Geometry(
        of_row=np.arange(n_layers) * rows // n_layers,
        of_column=np.arange(n_experts) * across // n_experts,
        rows=rows,
        across=across,
        cells=max(1, columns // n_experts),
        step=step,
        tall=min(max(1, height // n_layers), TALLEST),
    )


def place_at(experts: Experts, options: HeatOptions, x: int, y: int, width: int, height: int) -> Place | None:
    """What is drawn at that cell of the map, the first where several share it; None beside the map."""
    fit_in = geometry(experts, options, width, height)
    if fit_in is None or x < GUTTER or y < 0:
        return None
    row, column = y // fit_in.tall * fit_in.step, (x - GUTTER) // fit_in.cells
    if row >= fit_in.rows or column >= fit_in.across:
        return None
    return Place(int(np.searchsorted(fit_in.of_row, row)), int(np.searchsorted(fit_in.of_column, column)))


def heat_lines(
    experts: Experts, shown: Grid, options: HeatOptions, width: int, height: int, symbols: Symbols
) -> list[Line]:
    """The map in at most `height` lines of `width` cells."""
    fit_in = geometry(experts, options, width, height)
    if fit_in is None:
        return []
    codes = np.repeat(_codes(shown, fit_in), fit_in.cells, axis=1)
    if fit_in.step == 2:
        if fit_in.rows % 2:
            codes = np.vstack([codes, np.zeros((1, codes.shape[1]), dtype=codes.dtype)])
        codes = codes[0::2] * _PAIR + codes[1::2]
    if options.cursor is not None:
        at = int(fit_in.of_column[options.cursor.position]) * fit_in.cells
        codes[int(fit_in.of_row[options.cursor.row]) // fit_in.step, at : at + fit_in.cells] = _CURSOR
    first = np.searchsorted(fit_in.of_row, np.arange(0, fit_in.rows, fit_in.step)).tolist()
    margin = _margin(experts)
    room = Span(" " * (width - GUTTER - margin - codes.shape[1]))
    runs = _half_runs if fit_in.step == 2 else _runs
    lines: list[Line] = []
    for at, end in enumerate([*first[1:], experts.shape[0]]):
        label = Span(f"{experts.layers[first[at]]:>{GUTTER - 1}} ", "faint")
        body = runs(codes[at], symbols, options)
        covered = (_coverage(shown, first[at], end, symbols),) if margin else ()
        lines.append((label, *body, room, *covered))
        lines += [(Span(" " * GUTTER), *body, room, Span(" " * margin))] * (fit_in.tall - 1)
    return lines


def axis(experts: Experts, options: HeatOptions, width: int, symbols: Symbols) -> Line:
    """What runs across, below the map."""
    n_experts = experts.shape[1]
    columns = width - GUTTER - _margin(experts)
    used = min(n_experts, columns) * max(1, columns // n_experts)
    word = "rank" if options.order == "rank" else "expert"
    low, high = (1, n_experts) if options.order == "rank" else (0, n_experts - 1)
    left, end = f"{word} {low}", str(high)
    middle = f"{'by routes, most first' if options.order == 'rank' else 'by id'}"
    room = used - len(left) - len(end)
    between = middle.center(room) if room > len(middle) + 2 else " " * max(room, 1)
    return fit((Span(" " * GUTTER), Span(left + between + end, "dim")), width, symbols.ellipsis)


def legend(options: HeatOptions, width: int, symbols: Symbols, *, has_set: bool) -> Line:
    """What the cells mean."""
    ramp = (1, 3, 5, 7)
    kinds = (("hot", "hot"), ("cold", "cold")) if has_set else (("heat", "routes"),)
    parts: list[Span] = [Span(" " * GUTTER)]
    for role, word in kinds:
        parts += [Span(_glyph(role, level, symbols, options), f"{role}{level}") for level in ramp]
        parts.append(mark(f" {word}  ", "dim"))
    counted = "" if options.phase == "all" else f"{options.phase} "
    note = mark(f"stronger: more {counted}routes", "dim")
    return tuple(parts) if width_of((*parts, note)) > width else (*parts, note)


def readout(experts: Experts, shown: Grid, options: HeatOptions, symbols: Symbols) -> tuple[Line, Line]:
    """What is under the cursor, or how to move it."""
    if options.cursor is None:
        return (line(mark("arrows read a cell", "dim")), ())
    row, position = options.cursor.row, options.cursor.position
    expert = int(shown.experts[row, position])
    n_experts = experts.shape[1]
    total = int(experts.counts(options.phase)[row].sum())
    own = int(experts.counts(options.phase)[row, expert])
    heat = float(shown.heat[row, position])
    place = f"rank {position + 1} of {n_experts}" if options.order == "rank" else f"of {n_experts}"
    if experts.hot is None:
        state = mark("set not known", "warn")
    else:
        hot = bool(experts.hot[row, expert])
        state = mark(f"{symbols.dot} hot" if hot else f"{symbols.ring} cold", "hot6" if hot else "cold6")
    head = line(
        mark(f"layer {experts.layers[row]}", "strong"),
        mark("  "),
        mark(f"expert {expert}", "strong"),
        mark(f"  {place}  ", "dim"),
        state,
    )
    share = f"{100 * own / total:.2f} % of the layer, {heat:.1f}{symbols.times} even" if total else "no routes yet"
    figures = line(
        mark("prefill ", "dim"),
        mark(exact(int(experts.prefill[row, expert]), symbols)),
        mark("  decode ", "dim"),
        mark(exact(int(experts.decode[row, expert]), symbols)),
        mark(f"  {share}", "dim" if not total else "text"),
    )
    return head, figures


def moved(place: Place, rows: int, positions: int, shape: tuple[int, int]) -> Place:
    """The place so many cells further, inside the map."""
    n_layers, n_experts = shape
    return Place(
        min(max(place.row + rows, 0), n_layers - 1),
        min(max(place.position + positions, 0), n_experts - 1),
    )


def summary(experts: Experts, options: HeatOptions, width: int, symbols: Symbols) -> str:
    """Layers, experts and routes, for a title."""
    n_layers, n_experts = experts.shape
    routes = f"{count(int(experts.counts(options.phase).sum()), symbols)} routes"
    full = f"{n_layers} layers {symbols.times} {n_experts} experts, {routes}"
    return full if len(full) <= width else f"{n_layers}{symbols.times}{n_experts}, {routes}"


def _margin(experts: Experts) -> int:
    """Cells at the right for each line's coverage, which there is only with a set."""
    return 0 if experts.hot is None else COVERAGE


def _codes(shown: Grid, fit_in: Geometry) -> NDArray[np.int64]:
    """(rows, across) the code of every cell."""
    down = np.searchsorted(fit_in.of_row, np.arange(fit_in.rows))
    along = np.searchsorted(fit_in.of_column, np.arange(fit_in.across))
    sizes = np.outer(np.diff(np.append(down, len(fit_in.of_row))), np.diff(np.append(along, len(fit_in.of_column))))

    def mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
        summed: NDArray[np.float64] = np.add.reduceat(np.add.reduceat(values, down, axis=0), along, axis=1)
        means: NDArray[np.float64] = summed / sizes
        return means

    levels = np.digitize(mean(shown.heat), LEVELS)
    if shown.hot is None:
        return levels + 2 * _CODES
    return levels + _CODES * (mean(shown.hot.astype(np.float64)) >= 0.5)


def _runs(codes: NDArray[np.int64], symbols: Symbols, options: HeatOptions) -> list[Span]:
    cells = ((_cell(code, symbols, options), size) for code, size in _grouped(codes))
    return [Span(cell.text * size, cell.role) for cell, size in cells]


def _half_runs(keys: NDArray[np.int64], symbols: Symbols, options: HeatOptions) -> list[Span]:
    spans = []
    for key, size in _grouped(keys):
        if key == _CURSOR:
            spans.append(Span(_cell(key, symbols, options).text * size, "cursor"))
            continue
        upper, lower = divmod(key, _PAIR)
        cold = upper < _CODES, lower < _CODES
        if cold == (True, True):
            cell = _cell(max(upper, lower), symbols, options)
            spans.append(Span(cell.text * size, cell.role))
        elif cold == (True, False):
            spans.append(Span("▄" * size, f"{_role(lower)}/{_under(upper)}"))
        else:
            spans.append(Span("▀" * size, f"{_role(upper)}/{_under(lower)}"))
    return spans


def _grouped(codes: NDArray[np.int64]) -> list[tuple[int, int]]:
    """(code, repetitions) of every run."""
    starts = np.concatenate(([0], np.flatnonzero(np.diff(codes)) + 1, [len(codes)]))
    return [(int(codes[start]), int(end - start)) for start, end in pairwise(starts)]


def _under(code: int) -> str:
    """The role of the half that is background: cold ones are darker there, as their dots are."""
    return f"chill{code}" if code < _CODES else _role(code)


def _role(code: int) -> str:
    kind = ("cold", "hot", "heat")[code // _CODES]
    return f"{kind}{code % _CODES}"


def _cell(code: int, symbols: Symbols, options: HeatOptions) -> Span:
    if code == _CURSOR:
        return Span("X" if symbols.is_ascii else "◆", "cursor")
    role = _role(code)
    return Span(_glyph(role[:-1], code % _CODES, symbols, options), role)


def _glyph(kind: str, level: int, symbols: Symbols, options: HeatOptions) -> str:
    ramp = symbols.cold if kind == "cold" else symbols.hot
    if kind != "cold" and options.has_colour:
        return ramp[-1]
    return ramp[min(level * len(ramp) // _CODES, len(ramp) - 1)]


def _coverage(shown: Grid, first: int, end: int, symbols: Symbols) -> Span:
    """The mean coverage of the layers in one line."""
    if shown.coverage is None or np.isnan(shown.coverage[first:end]).all():
        return Span(symbols.missing.rjust(COVERAGE), "faint")
    value = 100 * float(np.nanmean(shown.coverage[first:end]))
    return Span(f"{value:.0f} %".rjust(COVERAGE), "dim")
