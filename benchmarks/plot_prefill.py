"""Draws what `hot_experts.py` measured: time to read new tokens by their number, one line per setting.

python benchmarks/plot_prefill.py RESULT.json OUT.svg
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 70, 250, 44, 60
COLOURS = ("#777777", "#c0392b", "#1f6fb2", "#2e8b57", "#b8860b", "#7d3c98", "#16a085", "#d35400", "#2c3e50")


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten within the range."""
    steps = [m * 10.0**e for e in range(-2, 6) for m in (1, 2, 5)]
    return [step for step in steps if low <= step <= high]


def draw(result: dict[str, Any]) -> str:
    """An SVG image with a panel for each context.

    Every row has `depths`, by context, with prefill_ms: milliseconds by number of new tokens. Where there is only one
    context, prefill_ms may be in the row itself.
    """
    rows = [row for row in result["results"] if row.get("depths") or row.get("prefill_ms")]
    panels: dict[str, list[tuple[int, str, dict[str, float]]]] = {}
    for number, row in enumerate(rows):
        for depth, found in (row.get("depths") or {"": row}).items():
            if found.get("prefill_ms"):
                panels.setdefault(depth, []).append((number, row["setting"]["name"], found["prefill_ms"]))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT * len(panels)}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT * len(panels)}" fill="white"/>',
    ]
    for place, depth in enumerate(sorted(panels, key=lambda depth: int(depth or 0))):
        behind = f"a context of {int(depth):,} tokens" if depth else "a context"
        title = (f"ms to read new tokens behind {behind}, by their number", str(result["model"]))
        parts += [f'<g transform="translate(0 {place * HEIGHT})">', *_panel(title, panels[depth]), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(title: tuple[str, str], rows: list[tuple[int, str, dict[str, float]]]) -> Iterator[str]:
    """Lines of number, name and times."""
    lengths = sorted({int(n) for _, _, times in rows for n in times})
    every = [ms for _, _, times in rows for ms in times.values()]
    low_ms, high_ms = 10 ** math.floor(math.log10(min(every))), max(every) * 1.1
    span = math.log(max(lengths[-1] / lengths[0], 1.001))

    def x(tokens: float) -> float:
        return LEFT + math.log(tokens / lengths[0]) / span * (WIDTH - LEFT - RIGHT)

    def y(ms: float) -> float:
        return HEIGHT - BOTTOM - math.log(ms / low_ms) / math.log(high_ms / low_ms) * (HEIGHT - TOP - BOTTOM)

    yield f'<text x="{LEFT}" y="18" font-size="14">{escape(title[0])}</text>'
    yield f'<text x="{LEFT}" y="34" fill="#555">{escape(title[1])}</text>'
    for ms in ticks(low_ms, high_ms):
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(ms):.1f}" y2="{y(ms):.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms:g}</text>'
    for n in lengths:
        if n & (n - 1) == 0:
            yield f'<text x="{x(n):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{n}</text>'
    for place, (number, name, times) in enumerate(rows):
        colour = COLOURS[number % len(COLOURS)]
        points = sorted((int(n), ms) for n, ms in times.items())
        path = " ".join(f"{x(n):.1f},{y(ms):.1f}" for n, ms in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        height = TOP + 20 + 22 * place
        yield f'<rect x="{WIDTH - RIGHT + 16}" y="{height - 9}" width="14" height="4" fill="{colour}"/>'
        yield f'<text x="{WIDTH - RIGHT + 36}" y="{height}">{escape(name)}</text>'


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(draw(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
