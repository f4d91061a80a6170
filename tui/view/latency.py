"""How long requests took: TTFT, TPOT, and the wait after a tool's output, each with its course, median and p95.

Below, where there is room, why the last answer took as long as it did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ostinatod.client_dashboard_values import Request, Unavailable
from ostinatod.tui.view.answer import answer_lines
from ostinatod.tui.view.charts import graph
from ostinatod.tui.view.empty import missing, sentence, unreachable
from ostinatod.tui.view.figures import ms, percentile
from ostinatod.tui.view.lines import EMPTY, Line, Span, fit, mark
from ostinatod.tui.view.state import View

_LABEL = 12
_FIGURE = 9
_TALLEST = 5
_LINES = 4
"""The least: titles, and one line for each."""


@dataclass(frozen=True, slots=True)
class Series:
    """One kind of waiting, oldest first."""

    label: str
    values: tuple[float, ...]


def series_of(requests: tuple[Request, ...]) -> tuple[Series, ...]:
    """What was measured of finished requests that are given newest first."""

    def of(value: Callable[[Request], float | None], kind: str | None = None) -> tuple[float, ...]:
        shown = (value(request) for request in requests[::-1] if kind is None or request.kind == kind)
        return tuple(found for found in shown if found is not None)

    return (
        Series("TTFT", of(lambda request: request.ttft_ms)),
        Series("TPOT", of(lambda request: request.tpot_ms)),
        # What the user of an agent sits through: from the tool's output to the first new token.
        Series("after tool", of(lambda request: request.ttft_ms, "after_tool")),
    )


def latency_lines(view: View, width: int, height: int) -> list[Line]:
    """A line per kind of waiting, and the last answer."""
    if (told := unreachable(view, width)) is not None:
        return told
    requests = view.reading.requests if view.reading else None
    if isinstance(requests, Unavailable):
        return missing(requests, view, width)
    if not view.finished:
        return sentence("No request has been answered yet. Agents and editors connect to", width) + sentence(
            f"{view.link.address}/v1", width, "strong"
        )
    room = height - _LINES
    why = answer_lines(view, width, min(room, 3))
    gap = [EMPTY] if why and room > len(why) else []
    return [*_rows(view, width, height - len(why) - len(gap)), *gap, *why]


def _rows(view: View, width: int, height: int) -> list[Line]:
    symbols = view.symbols
    titles = ("last", "p50", "p95") if width >= _LABEL + 3 * _FIGURE + 12 else ("p50", "p95")
    course = max(0, width - _LABEL - len(titles) * _FIGURE)
    head = (Span(" " * (_LABEL + course)), Span("".join(word.rjust(_FIGURE) for word in titles), "head"))
    lines: list[Line] = [fit(head, width, symbols.ellipsis)]
    series = series_of(view.finished)
    tall = min(max(1, (height - 1) // len(series)), _TALLEST)
    for entry in series:
        values = entry.values
        figures = {
            "last": Span(ms(values[-1] if values else None, symbols).rjust(_FIGURE), "dim"),
            "p50": Span(ms(percentile(values, 0.5), symbols).rjust(_FIGURE), "strong"),
            "p95": Span(ms(percentile(values, 0.95), symbols).rjust(_FIGURE)),
        }
        *above, lowest = graph(values, course, max(1, tall - 1), symbols)
        lines += [EMPTY] * (tall > 1)
        lines += [(Span(" " * _LABEL), *row) for row in above]
        row = (mark(entry.label.ljust(_LABEL)), *lowest, *(figures[word] for word in titles))
        lines.append(fit(row, width, symbols.ellipsis))
    return lines


def latency_subtitle(view: View) -> str:
    """Over how many requests."""
    shown = len(view.finished)
    return f"last {shown} requests" if shown > 1 else "one request" if shown else ""
