"""The line at the bottom: presets, and the keys that work everywhere."""

from __future__ import annotations

from ostinatod.tui.view.lines import Line, Span, fit, mark, width_of
from ostinatod.tui.view.symbols import Symbols

PRESETS = ("overview", "experts", "requests", "learning", "logs")

_COMMON = (
    ("?", "help"),
    ("^p", "commands"),
    ("q", "quit"),
    ("tab", "panel"),
    ("space", "pause"),
    ("t", "theme"),
    ("m", "model"),
)
_OWN = {
    "overview": (("l", "load"), ("u", "unload"), ("p", "pull"), ("x", "cancel")),
    "experts": (("arrows", "read a cell"), ("o", "order"), ("c", "phase")),
    "requests": (("enter", "detail"), ("x", "cancel")),
    "learning": (("r", "plan"), ("a", "apply"), ("z", "undo")),
    "logs": (("f", "follow"), ("/", "filter"), ("s", "source")),
}


def key_bar(preset: str, width: int, symbols: Symbols) -> Line:
    """The presets with the one shown marked, then as many keys as there is room for, its own ones first."""
    short = width < 100
    parts: list[Span] = []
    for number, name in enumerate(PRESETS, start=1):
        on = name == preset
        parts += [
            mark(f" {number} ", "tab_on" if on else "key"),
            mark(f"{name[:8]} " if short else f" {name}  ", "strong" if on else "dim"),
        ]
    parts.append(mark(symbols.divider, "faint"))
    for key, does in (*_OWN.get(preset, ()), *_COMMON):
        more = [mark(" "), mark(f" {key} ", "key"), mark(f" {does}", "dim")]
        if width_of((*parts, *more)) > width:
            break
        parts += more
    return fit(tuple(parts), width, symbols.ellipsis)
