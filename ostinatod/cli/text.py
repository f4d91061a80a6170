"""Text for terminals: what may be shown of untrusted strings, tables, sizes and times. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

# Escape sequences begin with ESC or a C1 control; without those a terminal has nothing to obey. Lone surrogates go too,
# because no terminal can be sent one.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# In a name, also what ends a line or turns the direction of writing and so makes a name look like another.
_NAME_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_DAY_S = 86400


def strip_controls(text: str) -> str:
    """`text` without control characters other than newline and tab."""
    return _CONTROLS.sub("", text)


def one_line(text: str) -> str:
    """`text` as it may stand in a table cell: no control characters, no line ends, no changes of direction."""
    return _NAME_CONTROLS.sub("", text)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns with four spaces between them and no borders."""
    cells = [list(header), *([one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    padded = ("    ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in padded)


def section(title: str, values: Iterable[tuple[str, str]]) -> str:
    """A heading with aligned keys and values below it."""
    lines = [(one_line(key), one_line(value)) for key, value in values]
    width = max((len(key) for key, _ in lines), default=0)
    return "\n".join([f"  {one_line(title)}", *(f"    {key.ljust(width)}    {value}".rstrip() for key, value in lines)])


def human_bytes(size: float) -> str:
    """A decimal size with two significant digits or whole units: 512 B, 9.6 GB, 137 GB."""
    value, unit = float(size), 0
    while round(value) >= 1000 and unit < len(_UNITS) - 1:
        value /= 1000
        unit += 1
    digits = 1 if unit and value < 9.95 else 0
    return f"{value:.{digits}f} {_UNITS[unit]}"


def human_duration(duration: timedelta) -> str:
    """A length of time in its largest unit: "About a minute", "4 minutes", "3 weeks"."""
    seconds = max(0, int(duration.total_seconds()))
    if seconds < 1:
        return "Less than a second"
    if seconds < 60:
        return counted(seconds, "second")
    if seconds < 120:
        return "About a minute"
    if seconds < 3600:
        return counted(seconds // 60, "minute")
    if seconds < 7200:
        return "About an hour"
    if seconds < 2 * _DAY_S:
        return counted(seconds // 3600, "hour")
    for days, unit in ((365, "year"), (30, "month"), (7, "week")):
        if seconds >= 2 * days * _DAY_S:
            return counted(seconds // (days * _DAY_S), unit)
    return counted(seconds // _DAY_S, "day")


def counted(number: int, unit: str) -> str:
    """A number of things: "1 request", "3 requests"."""
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def ago(moment: datetime | None, now: datetime) -> str:
    """When something was: "3 days ago"."""
    return f"{human_duration(now - moment)} ago" if moment else "-"


def until(moment: datetime | None, now: datetime) -> str:
    """When something will be: "4 minutes from now", or "Forever"."""
    if moment is None or moment - now > timedelta(days=36500):
        return "Forever"
    return f"{human_duration(moment - now)} from now" if moment > now else "Stopping..."


def outline(values: Mapping[str, Any], indent: int = 0) -> str:
    """Nested JSON as indented lines for people."""
    return "\n".join(_outline(values, " " * indent))


def _outline(values: Mapping[str, Any] | Sequence[Any], margin: str) -> Iterable[str]:
    named = values.items() if isinstance(values, Mapping) else enumerate(values)
    entries = [(one_line(str(key)).replace("_", " "), value) for key, value in named]
    width = max((len(key) for key, value in entries if not _nested(value)), default=0)
    for key, value in entries:
        if _nested(value):
            yield f"{margin}{key}"
            yield from _outline(value, margin + "  ")
        else:
            yield f"{margin}{key.ljust(width)}    {_scalar(value)}".rstrip()


def _nested(value: object) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value)
    )


def _scalar(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_scalar(item) for item in value) or "-"
    return one_line(str(value))
