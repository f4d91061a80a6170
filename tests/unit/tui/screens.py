"""Makes the pictures of the documentation: `python -m tests.unit.tui.screens docs/screens`."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from tests.fakes import dashboard_states
from tests.fakes.dashboard_daemon import DashboardDaemon
from tests.fakes.dashboard_states import Answers
from tests.unit.tui.conftest import make_app, until

SETTLED_S = 0.3
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


async def picture(answers: Answers, size: tuple[int, int], preset: str, theme: str, keys: tuple[str, ...]) -> str:
    """The dashboard as SVG, in the reader's own monospace font: a page of documentation fetches nothing."""
    with DashboardDaemon(answers) as daemon:
        app = make_app(daemon.port, theme=theme, preset=preset)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.rounds, "the first round")
            await pilot.press(*keys)
            await pilot.pause(SETTLED_S)
            return _FONTS.sub("", app.export_screenshot(title="ostinato tui", simplify=True))


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
