"""Tables for terminals: a first column of names, the others aligned to the right."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The lines of a table."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = []
    for name, *cells in (header, *rows):
        numbers = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *numbers]).rstrip())
    return "\n".join(lines)


def shown(value: float | None, form: str = ".2f") -> str:
    """A number, or a dash where none is known."""
    return "-" if value is None else format(value, form)
