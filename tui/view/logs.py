"""Log lines: found by a filter, coloured by their level, inert whatever they hold."""

from __future__ import annotations

import re

from ostinatod.client_dashboard_values import Unavailable
from ostinatod.tui.view.empty import missing, sentence, unreachable
from ostinatod.tui.view.inert import inert
from ostinatod.tui.view.lines import Line, Span
from ostinatod.tui.view.state import View, known
from ostinatod.tui.view.table import Column, Row, Table

_COLUMNS = (Column("line", importance=1, least=10, most=4000, grows=True),)
_LEVELS = (
    (re.compile(r"\b(ERROR|CRITICAL|FATAL|Traceback)\b|\berror:|^E "), "bad"),
    (re.compile(r"\bWARN(ING)?\b|\bwarning:|^W "), "warn"),
    (re.compile(r"\bDEBUG\b|^D "), "faint"),
)
_STAMP = re.compile(r"(?P<day>\d{4}-\d\d-\d\d)[ T](?P<time>\d\d:\d\d:\d\d)[.,]?\d* *")
_UPTIME = re.compile(r"\d+\.\d\d\.\d{3}\.\d{3} ")
"""Minutes, seconds, milliseconds and microseconds since an engine began."""
_OWN = re.compile(r"(?P<level>[A-Z]+) (?:ostinatod\.)?(?P<logger>[\w.]+) (?P<event>\w+)(?P<rest>.*)", re.DOTALL)
"""A line of the daemon's, behind its time."""
_KEY = re.compile(r"(?<= )\w+=")


def logs_table(view: View, wanted: str) -> Table:
    """The lines that hold `wanted`, in any case, oldest first."""
    if (told := unreachable(view, 60, in_full=True)) is not None:
        return Table(_COLUMNS, (), tuple(told))
    lines = view.reading.logs if view.reading else ()
    if isinstance(lines, Unavailable):
        return Table(_COLUMNS, (), tuple(missing(lines, view, 60)))
    found = found_lines(view, wanted)
    empty = sentence(f"No line of {len(lines)} holds {wanted!r}." if wanted else "The log is empty.", 60)
    # Lines have no identity of their own; counted from the newest, the cursor of one who follows stays at the end.
    stamp = _STAMP.match(found[-1]) if found else None
    today = stamp["day"] if stamp else ""
    rows = (Row(f"{len(found) - at}", (log_line(inert(text), today),)) for at, text in enumerate(found))
    return Table(_COLUMNS, tuple(rows), tuple(empty))


def found_lines(view: View, wanted: str) -> tuple[str, ...]:
    """The lines that hold `wanted`, in any case, as they were logged."""
    lines = known(view.reading.logs if view.reading else None, ())
    return tuple(text for text in lines if wanted.lower() in text.lower())


def log_role(text: str) -> str:
    """The colour of a line."""
    return next((role for pattern, role in _LEVELS if pattern.search(text)), "text")


def log_line(text: str, today: str = "") -> Line:
    """One line that is inert already: what tells lines apart stands out, and the day is told of other days only."""
    role = log_role(text)
    if (uptime := _UPTIME.match(text)) is not None:
        return (Span(uptime[0], "faint"), Span(text[uptime.end() :], role))
    stamp = _STAMP.match(text)
    if stamp is None:
        return (Span(text, role),)
    time = Span(f"{stamp['time'] if stamp['day'] == today else stamp[0].rstrip()} ", "faint")
    rest = text[stamp.end() :]
    own = _OWN.fullmatch(rest)
    if own is None:
        return (time, Span(rest, role))
    level = Span(f"{own['level']} ", "faint" if role == "text" else role)
    event = Span(own["event"], "strong" if role == "text" else role)
    return (time, level, Span(f"{own['logger']} ", "dim"), event, *_pairs(own["rest"], role))


def _pairs(text: str, role: str) -> Line:
    """`key=value` with the keys set back."""
    spans, at = [], 0
    for key in _KEY.finditer(text):
        spans += [Span(text[at : key.start()], role), Span(key[0], "faint")]
        at = key.end()
    return tuple(part for part in (*spans, Span(text[at:], role)) if part.text)
