"""Draws what `scaling.py` measured: a row of panels for each sweep, a decode step left and prefills right.

python benchmarks/plot_scaling.py RESULT.json OUT.svg
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from plot_prefill import ticks

WIDTH, HEIGHT = 900, 300
LEFT, TOP, BOTTOM = 56, 56, 48
PANEL = 320
"""Of a panel with its axis; what is right of two is for the legend."""
COLOURS = {"stock": "#777777", "ostinato": "#c0392b"}
DASHES = ("", "6 3", "2 3", "8 3 2 3")

SWEEPS = {
    "context": "tokens of context",
    "pool": "% of the experts hot",
    "threads": "threads of the CPU",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a panel; `points` are (x, milliseconds), ascending."""

    name: str
    colour: str
    dash: str
    points: Sequence[tuple[float, float]]


def draw(result: Mapping[str, Any]) -> str:
    """An SVG image with a row of two panels for each sweep that has more than one point."""
    rows = [row for row in result["rows"] if "failed" not in row]
    drawn = [(sweep, found) for sweep in SWEEPS if (found := points_of(rows, sweep, result["base"]))]
    height = HEIGHT * max(1, len(drawn))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for place, (sweep, found) in enumerate(drawn):
        fixed = f"{result['model']}; {', '.join(fixed_words(sweep, result['base']))}"
        decode = [
            _line(side, ", per token", "", {x: row["decode_ms"] for x, row in by_x.items()})
            for side, by_x in found.items()
        ]
        prefill = list(_prefill_lines(found))
        parts += [f'<g transform="translate(0 {place * HEIGHT})">', f'<text x="8" y="16">{escape(fixed)}</text>']
        for number, (title, lines) in enumerate((("ms per token", decode), ("ms to read new tokens", prefill))):
            parts += [f'<g transform="translate({number * PANEL} 0)">', *_panel(sweep, title, lines), "</g>"]
        parts += [*_legend([*decode, *prefill]), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def points_of(
    rows: Sequence[Mapping[str, Any]], sweep: str, base: Mapping[str, Any]
) -> dict[str, dict[float, Mapping[str, Any]]]:
    """By side and by value of what is swept; the rows in common with the other sweeps are those of the contexts.

    Empty where no side has two values.
    """
    found: dict[str, dict[float, Mapping[str, Any]]] = {}
    for row in rows:
        x = {"context": row["context"], "pool": 100 * row["share"], "threads": row["setting"]["threads"]}[sweep]
        is_common = row["sweep"] == "context" and row["context"] == base["context"]
        # 0 stands for all threads, how many that ever are.
        if x and (row["sweep"] == sweep or is_common):
            found.setdefault(row["setting"]["kind"], {})[x] = row
    longest = max((len(by_x) for by_x in found.values()), default=0)
    return {side: dict(sorted(by_x.items())) for side, by_x in found.items()} if longest > 1 else {}


def fixed_words(sweep: str, base: Mapping[str, Any]) -> Iterator[str]:
    """What is the same for all points of a sweep."""
    if sweep != "context":
        yield f"{base['context']:,} tokens of context"
    if sweep != "pool":
        yield f"{base['share']:.0%} of the experts hot"
    if sweep != "threads":
        yield f"{base['threads'] or 'all'} threads"


def _line(side: str, words: str, dash: str, points: Mapping[float, float]) -> Line:
    return Line(f"{side}{words}", COLOURS.get(side, "#1f6fb2"), dash, list(points.items()))


def _prefill_lines(found: Mapping[str, Mapping[float, Mapping[str, Any]]]) -> Iterator[Line]:
    """One for each side and number of new tokens."""
    for side, by_x in found.items():
        lengths = sorted({int(n) for row in by_x.values() for n in row["prefill_ms"]})
        for number, n in enumerate(lengths):
            times = {x: row["prefill_ms"][str(n)] for x, row in by_x.items() if str(n) in row["prefill_ms"]}
            yield _line(side, f", {n:,} new tokens", DASHES[number % len(DASHES)], times)


def _panel(sweep: str, title: str, lines: Sequence[Line]) -> Iterator[str]:
    """Milliseconds on a logarithmic axis; shares are drawn on a linear one, contexts and threads are not."""
    xs = sorted({x for line in lines for x, _ in line.points})
    every = [ms for line in lines for _, ms in line.points]
    steps = ticks(min(every) / 2, max(every) * 2)
    low_ms = max((step for step in steps if step <= min(every)), default=min(every))
    high_ms = max(max(every) * 1.1, low_ms * 2)

    def x(value: float) -> float:
        first, last, at = (value if sweep == "pool" else math.log(value) for value in (xs[0], xs[-1], value))
        return LEFT + (at - first) / (last - first) * (PANEL - LEFT - 24)

    def y(ms: float) -> float:
        return HEIGHT - BOTTOM - math.log(ms / low_ms) / math.log(high_ms / low_ms) * (HEIGHT - TOP - BOTTOM)

    yield f'<text x="{LEFT}" y="{TOP - 14}" font-size="14">{escape(title)}</text>'
    for ms in ticks(low_ms, high_ms):
        yield f'<line x1="{LEFT}" x2="{PANEL - 24}" y1="{y(ms):.1f}" y2="{y(ms):.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 6}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms:g}</text>'
    for value in xs:
        words = f"{value / 1024:g}k" if sweep == "context" and value >= 1024 else f"{value:g}"
        yield f'<text x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{words}</text>'
    yield f'<text x="{LEFT}" y="{HEIGHT - BOTTOM + 34}" fill="#555">{SWEEPS[sweep]}</text>'
    for line in lines:
        path = " ".join(f"{x(at):.1f},{y(ms):.1f}" for at, ms in line.points)
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        yield f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}/>'
        yield from (f'<circle cx="{x(at):.1f}" cy="{y(ms):.1f}" r="3" fill="{line.colour}"/>' for at, ms in line.points)


def _legend(lines: Sequence[Line]) -> Iterator[str]:
    for place, line in enumerate(lines):
        height, left = TOP + 20 * place, 2 * PANEL + 8
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        yield (
            f'<line x1="{left}" x2="{left + 28}" y1="{height - 4}" y2="{height - 4}" stroke="{line.colour}" '
            f'stroke-width="2"{dash}/>'
        )
        yield f'<text x="{left + 36}" y="{height}">{escape(line.name)}</text>'


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(draw(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
