"""Log lines: found by a filter, coloured by their level, inert whatever they hold."""

from __future__ import annotations

import re

from ostinatod.client_dashboard_values import Unavailable
from ostinatod.tui.view.empty import missing, sentence, unreachable
from ostinatod.tui.view.inert import inert
from ostinatod.tui.view.lines import Line, Span
from ostinatod.tui.view.state import View
from ostinatod.tui.view.table import Column, Row, Table

_COLUMNS = (Column("line", importance=1, least=10, most=4000, grows=True),)
_LEVELS = (
    (re.compile(r"\b(ERROR|CRITICAL|FATAL|Traceback)\b|\berror:|^E "), "bad"),
    (re.compile(r"\bWARN(ING)?\b|\bwarning:|^W "), "warn"),
    (re.compile(r"\bDEBUG\b|^D "), "faint"),
)
_STAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]?\d*")


def logs_table(view: View, wanted: str) -> Table:
    """The lines that hold `wanted`, in any case, oldest first."""
    if (told := unreachable(view, 60, in_full=True)) is not None:
        return Table(_COLUMNS, (), tuple(told))
    lines = view.reading.logs if view.reading else ()
    if isinstance(lines, Unavailable):
        return Table(_COLUMNS, (), tuple(missing(lines, view, 60)))
    found = [text for text in lines if wanted.lower() in text.lower()]
    empty = sentence(f"No line of {len(lines)} holds {wanted!r}." if wanted else "The log is empty.", 60)
    # Lines have no identity of their own; counted from the newest, the cursor of one who follows stays at the end.
    rows = (Row(f"{len(found) - at}", (log_line(inert(text)),)) for at, text in enumerate(found))
    return Table(_COLUMNS, tuple(rows), tuple(empty))


def log_role(text: str) -> str:
    """The colour of a line."""
    return next((role for pattern, role in _LEVELS if pattern.search(text)), "text")


def log_line(text: str) -> Line:
    """One line that is inert already, with its time set back."""
    role = log_role(text)
    stamp = _STAMP.match(text)
    if stamp is None:
        return (Span(text, role),)
    return (Span(text[: stamp.end()], "faint"), Span(text[stamp.end() :], role))
