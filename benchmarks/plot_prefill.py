"""Draws what `hot_experts.py` measured: time to read new tokens by their number, one line per setting.

python benchmarks/plot_prefill.py RESULT.json OUT.svg
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 70, 250, 44, 60
COLOURS = ("#777777", "#c0392b", "#1f6fb2", "#2e8b57", "#b8860b", "#7d3c98", "#16a085", "#d35400")


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten within the range."""
    steps = [m * 10.0**e for e in range(6) for m in (1, 2, 5)]
    return [step for step in steps if low <= step <= high]


def draw(result: dict[str, Any]) -> str:
    """An SVG image. Every row has prefill_ms: milliseconds by number of new tokens."""
    rows = result["results"]
    lengths = sorted({int(n) for row in rows for n in row["prefill_ms"]})
    times = [ms for row in rows for ms in row["prefill_ms"].values()]
    low_ms, high_ms = 10 ** math.floor(math.log10(min(times))), max(times) * 1.1

    def x(tokens: float) -> float:
        part = math.log(tokens / lengths[0]) / math.log(lengths[-1] / lengths[0])
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(ms: float) -> float:
        return HEIGHT - BOTTOM - math.log(ms / low_ms) / math.log(high_ms / low_ms) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">ms to read new tokens behind a context, by their number</text>',
        f'<text x="{LEFT}" y="34" fill="#555">{escape(result["model"])}</text>',
    ]
    for ms in ticks(low_ms, high_ms):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(ms):.1f}" y2="{y(ms):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms:g}</text>')
    parts += [
        f'<text x="{x(n):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{n}</text>'
        for n in lengths
        if n & (n - 1) == 0
    ]
    for number, row in enumerate(rows):
        colour = COLOURS[number % len(COLOURS)]
        points = sorted((int(n), ms) for n, ms in row["prefill_ms"].items())
        path = " ".join(f"{x(n):.1f},{y(ms):.1f}" for n, ms in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        height = TOP + 20 + 22 * number
        parts.append(f'<rect x="{WIDTH - RIGHT + 16}" y="{height - 9}" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 36}" y="{height}">{escape(row["setting"]["name"])}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(draw(json.loads(source.read_text(encoding="utf-8"))), encoding="utf-8")
