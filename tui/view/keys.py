"""The line at the bottom: presets, what keys do in the panel with the focus, and the keys that work everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from ostinatod.tui.view.lines import Line, Span, fit, mark, width_of
from ostinatod.tui.view.symbols import Symbols

PRESETS = ("overview", "experts", "requests", "learning", "logs")

Keys = tuple[tuple[str, str], ...]
"""Keys with one word each for what they do."""

_HELP = ("?", "help")
"""Always shown, after the first few of the panel."""
_COMMON: Keys = (
    ("^p", "commands"),
    ("q", "quit"),
    ("tab", "panel"),
    ("space", "pause"),
    ("t", "theme"),
    ("m", "model"),
)
_OF_PRESET: dict[str, Keys] = {
    "overview": (("l", "load"), ("u", "unload"), ("p", "pull"), ("x", "cancel")),
    "learning": (("r", "plan"), ("a", "apply"), ("z", "undo")),
    "logs": (("/", "filter"), ("s", "source")),
}
_SHORT_WIDTH = 110
"""Below it keys stand without a frame."""


def key_bar(preset: str, panel: Keys, width: int, symbols: Symbols) -> Line:
    """The presets with the one shown marked, then as many keys as there is room for.

    panel  what keys do in the panel with the focus, most wanted first
    """
    is_short = width < _SHORT_WIDTH
    pad = "" if is_short else " "
    parts: list[Span] = []
    for number, name in enumerate(PRESETS, start=1):
        on = name == preset
        parts += [Span(" " if is_short else ""), mark(f"{pad}{number}{pad}", "tab_on" if on else "key")]
        parts.append(mark(f" {name}{pad}", "strong" if on else "dim"))
    parts.append(mark(f" {symbols.divider}", "rest"))
    own = [_entry(key, does, pad) for key, does in dict((*panel, *_OF_PRESET.get(preset, ()))).items()]
    common = [_entry(key, does, pad) for key, does in _COMMON]
    help_at, help_entry = 2 if is_short else 3, _entry(*_HELP, pad)
    left = width - width_of((*parts, *help_entry))
    first = _fitting(own[:help_at], left)
    rest = _fitting([*own[help_at:], *common], left - width_of(first))
    return fit((*parts, *first, *help_entry, *rest), width, symbols.ellipsis)


def _fitting(entries: Sequence[Line], width: int) -> Line:
    """As many entries from the front as have room."""
    taken: list[Span] = []
    for entry in entries:
        if width_of((*taken, *entry)) > width:
            break
        taken += entry
    return tuple(taken)


def _entry(key: str, does: str, pad: str) -> Line:
    return (mark(" "), mark(f"{pad}{key}{pad}", "key"), mark(f" {does}", "dim"))
