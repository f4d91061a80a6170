"""What a panel says instead of figures: what is missing, why, and what to do. Never a made-up figure."""

from __future__ import annotations

from ostinatod.client_dashboard_values import NOT_ASKED, Unavailable
from ostinatod.tui.view.charts import meter
from ostinatod.tui.view.lines import EMPTY, Line, line, mark, span, wrap
from ostinatod.tui.view.state import View


def centred(lines: list[Line], height: int) -> list[Line]:
    """The lines in the middle of the height."""
    above = max(0, (height - len(lines)) // 2)
    return [EMPTY] * above + lines


def sentence(text: str, width: int, role: str = "dim") -> list[Line]:
    """Text over as many lines as it needs, with a margin."""
    return [line(mark("  "), mark(row, role)) for row in wrap(text, max(width - 4, 8))]


def missing(part: Unavailable, view: View, width: int, *, with_hint: bool = True) -> list[Line]:
    """Why a part is missing, and the next command."""
    if part is NOT_ASKED and view.link.state != "lost":
        return sentence("reading", width, "faint")
    lines = sentence(part.reason, width)
    if part.hint and with_hint:
        lines += sentence(part.hint, width, "strong")
    return lines


def unreachable(view: View, width: int, *, in_full: bool = False) -> list[Line] | None:
    """What to say while nothing has been read from the daemon; None once something has.

    The header tells why at any time; `in_full` tells it once more, for the largest panel.
    """
    if view.reading is not None:
        return None
    if view.link.state == "lost" and in_full:
        why = sentence(view.link.error or "no daemon answers", width, "bad")
        return [*why, EMPTY, *sentence(view.link.hint, width, "strong")]
    return sentence("waiting for the daemon", width, "faint")


def not_ready(view: View, width: int) -> list[Line] | None:
    """What a panel about one model says while there is none, or how far it is loaded; None once it is ready."""
    model = view.model
    if model is None:
        named = f"{view.focus} is not in memory." if view.focus else "No model is in memory."
        return [*sentence(named, width), key_hint("l", "load one"), key_hint("p", "pull one from the hub")]
    if model.state != "loading":
        return None
    bar = meter(model.progress, max(8, min(48, width - 14)), view.symbols, "accent")
    done = "" if model.progress is None else f" {100 * model.progress:.0f} %"
    return [line(mark("  "), mark("loading into memory", "dim")), line(mark("  "), *bar, mark(done, "strong"))]


def key_hint(key: str, does: str) -> Line:
    """A key and what it does, for an empty panel."""
    return line(mark("  "), mark(f" {key} ", "key"), span(f" {does}", "dim"))
