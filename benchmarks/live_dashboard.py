"""Pictures of the dashboard of a running daemon, and what its memory panel says: `live_dashboard.py URL FOLDER`.

Runs the real dashboard without a terminal, in two sizes, through every preset. Writes an SVG and the plain text of each
screen into FOLDER. Prints JSON: by size, the screens' names and the lines of every memory panel on them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from ostinatod.client_dashboard import DashboardClient
from ostinatod.keys import key_for
from ostinatod.tui.app import DashboardApp
from ostinatod.tui.host import HostMeter
from ostinatod.tui.screens.presets import KINDS
from ostinatod.tui.widgets.panel import Lines
from ostinatod.tui.widgets.panels import MemoryPanel

SIZES = ((120, 40), (200, 60))
PATIENCE_S = 10.0
ROUNDS = 2
"""Readings of the daemon until a preset's panels have what they ask for."""


async def read_on(app: DashboardApp, pilot: Pilot[None], rounds: int) -> None:
    """Wait for so many more readings of the daemon. Raises TimeoutError when they do not come."""
    wanted, ends_at = app.rounds + rounds, time.monotonic() + PATIENCE_S
    app.feed.refresh()
    while app.rounds < wanted:
        if time.monotonic() > ends_at:
            raise TimeoutError(f"the daemon was not read {rounds} times within {PATIENCE_S:g} s")
        await pilot.pause(0.05)
    await pilot.pause()


def lines_of(panel: Lines) -> list[str]:
    """What a panel shows, without colours."""
    return [panel.render_line(y).text.rstrip() for y in range(panel.content_size.height)]


async def screens(url: str, size: tuple[int, int], folder: Path) -> dict[str, Any]:
    """Every preset in one size."""
    app = DashboardApp(lambda: DashboardClient(url, api_key=key_for(url)), interval_s=0.5, measure=HostMeter().measure)
    told: dict[str, Any] = {"screens": [], "memory": {}}
    async with app.run_test(size=size) as pilot:
        for preset in KINDS:
            app.choose_preset(preset)
            await pilot.pause()
            await read_on(app, pilot, ROUNDS)
            name = f"{preset}-{size[0]}x{size[1]}"
            svg = app.export_screenshot(title="ostinato tui", simplify=True)
            (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
            panels = {panel.TITLE or type(panel).__name__: lines_of(panel) for panel in app.dashboard.panels()}
            text = "\n\n".join("\n".join([f"== {title}", *shown]) for title, shown in panels.items())
            (folder / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
            told["screens"].append(name)
            memory = app.dashboard.panel(MemoryPanel)
            if memory is not None:
                told["memory"][name] = lines_of(memory)
    return told


def main(url: str, folder: str) -> int:
    """All sizes."""
    told = {f"{size[0]}x{size[1]}": asyncio.run(screens(url, size, Path(folder))) for size in SIZES}
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
