"""What every preset looks like. After a change that is meant: `pytest tests/unit/tui --snapshot-update`, then look."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from ostinatod.tui.app import DashboardApp
from tests.fakes import dashboard_states
from tests.fakes.dashboard_daemon import DashboardDaemon
from tests.unit.tui.conftest import PATIENCE_S, make_app, nobody_watching, until

SMALL, USUAL, LARGE = (80, 24), (120, 40), (200, 60)

Compare = Callable[..., bool]


Screen = tuple[str, tuple[int, int], str, str, tuple[str, ...]]
"""A state of the daemon, the size, the preset, the theme, and keys to press."""

SCREENS: tuple[Screen, ...] = (
    ("absent", SMALL, "overview", "dark", ()),
    ("absent", USUAL, "learning", "ascii", ()),
    ("idle", USUAL, "overview", "dark", ()),
    ("loading", SMALL, "overview", "dark", ()),
    ("busy_cpu", USUAL, "overview", "dark", ()),
    ("older", SMALL, "overview", "light", ()),
    ("gpu", SMALL, "overview", "dark", ()),
    ("gpu", USUAL, "overview", "light", ()),
    ("gpu", LARGE, "overview", "mono", ()),
    ("gpu", USUAL, "experts", "dark", ("down", "down", "right", "right", "right")),
    ("gpu", SMALL, "experts", "ascii", ("right",)),
    ("gpu", LARGE, "requests", "dark", ("down",)),
    ("gpu", SMALL, "requests", "dark", ()),
    ("gpu", USUAL, "learning", "dark", ()),
    ("gpu", SMALL, "learning", "mono", ()),
    ("gpu", SMALL, "logs", "dark", ()),
    ("gpu", SMALL, "overview", "mono", ("question_mark",)),
    ("gpu", USUAL, "learning", "ascii", ("a",)),
    ("hostile", USUAL, "overview", "dark", ()),
    ("hostile", USUAL, "learning", "ascii", ()),
    ("hostile", SMALL, "logs", "dark", ()),
)


def name_of(screen: Screen) -> str:
    state, (width, height), preset, theme, keys = screen
    return "-".join([state, f"{width}x{height}", preset, theme, *keys[-1:]])


@pytest.mark.parametrize(
    ("state", "size", "preset", "theme", "keys"), SCREENS, ids=[name_of(screen) for screen in SCREENS]
)
def test_the_screen_is_as_accepted(
    snap_compare: Compare,
    daemon: DashboardDaemon,
    state: str,
    size: tuple[int, int],
    preset: str,
    theme: str,
    keys: tuple[str, ...],
) -> None:
    daemon.answers = {} if state == "absent" else getattr(dashboard_states, state)()
    app = make_app(daemon.port, theme=theme, preset=preset)

    async def read_once(pilot: Pilot[None]) -> None:
        await until(pilot, lambda: app.rounds, "the first round")
        await pilot.press(*keys)
        await until(pilot, lambda: _is_settled(app), "everything is drawn")

    with nobody_watching():
        assert snap_compare(app, terminal_size=size, run_before=read_once)
    app.feed.join(PATIENCE_S)


def _is_settled(app: DashboardApp) -> bool:
    return not app.screen._dirty_widgets and app.dashboard.has_class("-small") == (app.size.width < 110)
