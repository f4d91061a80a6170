"""Makes the pictures of the documentation: `python -m tests.unit.tui.screens docs/screens`."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tests.fakes import dashboard_states
from tests.fakes.dashboard_daemon import DashboardDaemon
from tests.fakes.dashboard_states import Answers
from tests.unit.tui.conftest import make_app, until

SETTLED_S = 0.3
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_TEXT = re.compile(
    r'<text class="(?P<style>[^"]*)" x="(?P<x>[\d.]+)" y="(?P<y>[\d.]+)" textLength="[\d.]+"(?P<rest>[^>]*)>'
    r"(?P<text>[^<]*)</text>"
)
_BLANK = "&#160;"
_CELL, _LINE = 12.2, 24.4
"""Width and height of a cell, in the picture's units."""
_TOP = 18.5
"""From the upper end of a line to where its letters stand."""
_OVERLAP = 0.25
"""By which rectangles reach into the next line, so that no seam shows."""
_BLOCKS = {letter: (1 - eighths / 8, eighths / 8) for eighths, letter in enumerate(" ▁▂▃▄▅▆▇█")} | {"▀": (0.0, 0.5)}
"""Where in a cell a block begins, from above, and how high it is."""


async def picture(answers: Answers, size: tuple[int, int], preset: str, theme: str, keys: tuple[str, ...]) -> str:
    """The dashboard as SVG, in the reader's own monospace font: a page of documentation fetches nothing."""
    with DashboardDaemon(answers) as daemon:
        app = make_app(daemon.port, theme=theme, preset=preset)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.rounds, "the first round")
            await pilot.press(*keys)
            await pilot.pause(SETTLED_S)
            return for_every_reader(app.export_screenshot(title="ostinato tui", simplify=True))


def for_every_reader(svg: str) -> str:
    """The picture without what depends on its reader: fonts to fetch, blanks before a text, letters that are blocks.

    Some programs drop the blanks, and few fonts fill their cells with the blocks.
    """
    return _TEXT.sub(_drawn, _FONTS.sub("", svg))


def _drawn(found: re.Match[str]) -> str:
    style, x, y = found["style"], float(found["x"]), float(found["y"])
    letters = found["text"].replace(_BLANK, " ")
    kept = letters.strip(" ")
    if not kept:
        return ""
    x += (len(letters) - len(letters.lstrip(" "))) * _CELL
    if all(letter in _BLOCKS for letter in kept):
        return "".join(_blocks(letter, count, style, x + at * _CELL, y - _TOP) for at, letter, count in _runs(kept))
    if "&" in kept:
        return found[0]
    length = len(kept) * _CELL
    text = kept.replace(" ", _BLANK)
    return f'<text class="{style}" x="{x:g}" y="{y:g}" textLength="{length:g}"{found["rest"]}>{text}</text>'


def _runs(letters: str) -> Iterator[tuple[int, str, int]]:
    """(place, letter, repetitions) of every run."""
    at = 0
    for letter, run in groupby(letters):
        count = len(list(run))
        yield at, letter, count
        at += count


def _blocks(letter: str, count: int, style: str, x: float, top: float) -> str:
    """So many cells of a block as one rectangle."""
    down, height = _BLOCKS[letter]
    if not height:
        return ""
    place = f'x="{x:g}" y="{top + down * _LINE:g}" width="{count * _CELL:g}" height="{height * _LINE + _OVERLAP:g}"'
    return f'<rect class="{style}" {place} shape-rendering="crispEdges"/>'


async def pictures(directory: Path) -> None:
    """Every picture."""
    gpu, down, right = dashboard_states.gpu, "down", "right"
    screens = {
        "overview": (gpu(), (120, 40), "overview", "dark", ()),
        "experts": (gpu(), (100, 32), "experts", "dark", (down, down, right, right, right, right)),
        "large": (gpu(), (180, 54), "experts", "dark", (right, right)),
        "requests": (gpu(), (120, 36), "requests", "dark", (down, down, down, down)),
        "learning": (gpu(), (120, 34), "learning", "dark", ()),
        "logs": (gpu(), (100, 24), "logs", "dark", ()),
        "confirm": (gpu(), (100, 30), "learning", "dark", ("a",)),
        "help": (gpu(), (100, 30), "overview", "dark", ("question_mark",)),
        "commands": (gpu(), (100, 30), "overview", "dark", ("ctrl+p",)),
        "small": (gpu(), (80, 24), "overview", "light", ()),
        "mono": (gpu(), (80, 24), "overview", "mono", ()),
        "ascii": (gpu(), (80, 24), "experts", "ascii", (right, right)),
        "idle": (dashboard_states.idle(), (80, 24), "overview", "dark", ()),
        "cpu": (dashboard_states.busy_cpu(), (80, 24), "overview", "dark", ()),
    }
    for name, screen in screens.items():
        (directory / f"{name}.svg").write_text(await picture(*screen), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(pictures(Path(sys.argv[1])))
