"""The report as a picture: the total of each session, and the wait after a tool's output by new tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ostinatod.bench.drawing import Drawing, Line, Rectangle, Words
from ostinatod.bench.report import Report, bucket_words
from ostinatod.bench.statistics import BUCKETS

WIDTH, PANEL_HEIGHT, MARGIN = 860, 260, 56
COLOURS = ("#1b6ca8", "#d9822b", "#5b8c5a", "#8e5ea2", "#a33b3b", "#777777")
GRID = "#dddddd"


def plot(report: Report) -> Drawing:
    """Two panels of bars, one bar per setting: request time of each session, median TTFT by new tokens; seconds.

    Without a turn after a tool's output there is no second one.
    """
    names = [item.setting for item in report.settings]
    sessions = list(dict.fromkeys(name for item in report.settings for name in item.sessions))
    totals = [[item.sessions.get(session) for session in sessions] for item in report.settings]
    waits = [[group.ttft_ms for group in item.by_new_tokens] for item in report.settings]
    buckets = [bucket_words(bucket) for bucket in BUCKETS]
    numbers = [str(n + 1) for n in range(len(sessions))]
    shapes = [*_panel(20, "Request time of each held-out session, s", numbers, totals)]
    end = 30 + PANEL_HEIGHT
    if any(wait is not None for row in waits for wait in row):
        shapes += _panel(end, "Median TTFT after a tool's output, by new tokens, s", buckets, waits)
        end += PANEL_HEIGHT
    for number, name in enumerate(names):
        y = end + 30 + 18 * number
        shapes += [Rectangle(MARGIN, y - 10, 12, 12, _colour(number)), Words(MARGIN + 18, y, name)]
    return Drawing(WIDTH, end + 30 + 18 * len(names), shapes)


def _panel(
    top: int, title: str, groups: Sequence[str], series: Sequence[Sequence[float | None]]
) -> Iterator[Rectangle | Line | Words]:
    """Bars of milliseconds on an axis of seconds; a group without a value has no bar."""
    highest = max((value for row in series for value in row if value is not None), default=1.0) / 1000
    step = _step(highest)
    ceiling = step * math.ceil(highest / step)
    bottom, room = top + PANEL_HEIGHT - 40, PANEL_HEIGHT - 70
    yield Words(MARGIN, top + 12, title, is_bold=True)
    for tick in range(round(ceiling / step) + 1):
        y = bottom - room * tick * step / ceiling
        yield Line(MARGIN, WIDTH - 10, y, GRID)
        yield Words(MARGIN - 6, y + 4, f"{tick * step:g}", "end")
    wide = (WIDTH - MARGIN - 10) / max(1, len(groups))
    bar = 0.8 * wide / len(series)
    for column, group in enumerate(groups):
        left = MARGIN + column * wide
        yield Words(left + wide / 2, bottom + 16, group, "middle")
        for number, row in enumerate(series):
            value = row[column]
            if value is not None:
                tall = room * value / 1000 / ceiling
                yield Rectangle(left + 0.1 * wide + number * bar, bottom - tall, bar, tall, _colour(number))


def _step(highest: float) -> float:
    """A round distance between ticks: 1, 2 or 5 times a power of ten, about five of them below `highest`."""
    rough = max(highest, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
