"""The report as a picture: a small SVG with the total of each session and the wait after a tool's output."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from ostinatod.bench.report import Report, bucket_words
from ostinatod.bench.statistics import BUCKETS

WIDTH, PANEL_HEIGHT, MARGIN = 860, 260, 56
COLOURS = ("#1b6ca8", "#d9822b", "#5b8c5a", "#8e5ea2", "#a33b3b", "#777777")


def plot_svg(report: Report) -> str:
    """Two panels of bars, one bar per setting: request time of each session, median TTFT by new tokens; seconds."""
    names = [item.setting for item in report.settings]
    sessions = list(report.settings[0].sessions)
    totals = [[item.sessions.get(session) for session in sessions] for item in report.settings]
    waits = [[group.ttft_ms for group in item.by_new_tokens] for item in report.settings]
    buckets = [bucket_words(bucket) for bucket in BUCKETS]
    height = 2 * PANEL_HEIGHT + 60 + 18 * len(names)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *_panel(20, "Request time of each held-out session, s", [str(n + 1) for n in range(len(sessions))], totals),
        *_panel(30 + PANEL_HEIGHT, "Median TTFT after a tool's output, by new tokens, s", buckets, waits),
    ]
    for number, name in enumerate(names):
        y = 60 + 2 * PANEL_HEIGHT + 18 * number
        lines.append(f'<rect x="{MARGIN}" y="{y - 10}" width="12" height="12" fill="{_colour(number)}"/>')
        lines.append(f'<text x="{MARGIN + 18}" y="{y}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(top: int, title: str, groups: Sequence[str], series: Sequence[Sequence[float | None]]) -> Iterator[str]:
    """Bars of milliseconds on an axis of seconds; a group without a value has no bar."""
    highest = max((value for row in series for value in row if value is not None), default=1.0) / 1000
    step = _step(highest)
    ceiling = step * math.ceil(highest / step)
    bottom, room = top + PANEL_HEIGHT - 40, PANEL_HEIGHT - 70
    yield f'<text x="{MARGIN}" y="{top + 12}" font-weight="bold">{escape(title)}</text>'
    for tick in range(round(ceiling / step) + 1):
        y = bottom - room * tick * step / ceiling
        yield f'<line x1="{MARGIN}" y1="{y:.1f}" x2="{WIDTH - 10}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{tick * step:g}</text>'
    wide = (WIDTH - MARGIN - 10) / max(1, len(groups))
    bar = 0.8 * wide / len(series)
    for column, group in enumerate(groups):
        left = MARGIN + column * wide
        yield f'<text x="{left + wide / 2:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(group)}</text>'
        for number, row in enumerate(series):
            value = row[column]
            if value is not None:
                tall = room * value / 1000 / ceiling
                x = left + 0.1 * wide + number * bar
                yield (
                    f'<rect x="{x:.1f}" y="{bottom - tall:.1f}" width="{bar:.1f}" height="{tall:.1f}" '
                    f'fill="{_colour(number)}"/>'
                )


def _step(highest: float) -> float:
    """A round distance between ticks: 1, 2 or 5 times a power of ten, about five of them below `highest`."""
    rough = max(highest, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
