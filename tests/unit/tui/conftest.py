from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from textual._compositor import Compositor
from textual.pilot import Pilot

from ostinatod.client_dashboard import DashboardClient
from ostinatod.client_dashboard_values import DaemonState
from ostinatod.tui.app import DashboardApp
from ostinatod.tui.view.state import Host
from tests.fakes.dashboard_daemon import DashboardDaemon
from tests.fakes.dashboard_states import NOW

ADDRESS = "http://127.0.0.1:11435"
PATIENCE_S = 20.0
GIB = 1024**3


class Rerouted(httpx.HTTPTransport):
    """Sends what is meant for one port to another, so that the address on the screen is always the same."""

    def __init__(self, port: int) -> None:
        # Plain HTTP needs no certificates, whose reading takes long.
        super().__init__(verify=False)
        self._port = port

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(port=self._port)
        return super().handle_request(request)


def measure(daemon: DaemonState | None, now_s: float) -> Host:
    """A machine that is always the same."""
    return Host(0.021, 0.34, 16, 128 * GIB, 41 * GIB, is_daemons=daemon is not None)


def make_app(
    port: int,
    *,
    theme: str = "dark",
    preset: str = "overview",
    interval_s: float = 1.0,
    no_colour: bool = False,
) -> DashboardApp:
    """The dashboard of the daemon at `port`, at a fixed time."""
    return DashboardApp(
        lambda: DashboardClient(ADDRESS, transport=Rerouted(port), clock=lambda: NOW),
        theme=theme,
        preset=preset,
        interval_s=interval_s,
        no_colour=no_colour,
        clock=lambda: NOW,
        measure=measure,
    )


async def until(pilot: Pilot[None], condition: Callable[[], object], what: str) -> None:
    """Returns when `condition` is true; fails the test if it does not become true."""
    ends_at = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > ends_at:
            pytest.fail(f"not within {PATIENCE_S:g} s: {what}")
        await pilot.pause(0.05)
    await pilot.pause()


def text_of(app: DashboardApp) -> str:
    """What the terminal shows, without colours."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)


@dataclass
class Running:
    """A dashboard under a test's hands."""

    app: DashboardApp
    pilot: Pilot[None]
    daemon: DashboardDaemon

    @property
    def text(self) -> str:
        """What the terminal shows."""
        return text_of(self.app)

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something."""
        await until(self.pilot, condition, what)

    async def until_shown(self, *words: str) -> None:
        """Wait until the terminal shows all of `words`."""
        await self.until(lambda: all(word in self.text for word in words), f"{words} in\n{self.text}")

    async def next_round(self) -> None:
        """Read the daemon once more.

        Twice: the first to end may have begun before this was called.
        """
        for _ in range(2):
            rounds = self.app.rounds
            self.app.feed.refresh()
            await self.until(lambda rounds=rounds: self.app.rounds > rounds, "another round")


@asynccontextmanager
async def running(
    daemon: DashboardDaemon, *, size: tuple[int, int] = (120, 40), theme: str = "dark", preset: str = "overview"
) -> AsyncIterator[Running]:
    """A dashboard that has read the daemon once, and does so again only when it is asked to."""
    app = make_app(daemon.port, theme=theme, preset=preset, interval_s=3600.0)
    with nobody_watching():
        async with app.run_test(size=size, notifications=True) as pilot:
            await until(pilot, lambda: app.rounds, "the first round")
            yield Running(app, pilot, daemon)
    app.feed.join(PATIENCE_S)


@contextmanager
def nobody_watching() -> Iterator[None]:
    """Draws only what is asked for, by `text_of` or a picture: nothing looks at the terminal of a test in between, and
    drawing there takes half of the time. The tests in a real terminal draw as users see it.
    """
    draw = Compositor.render_update

    def draw_pictures(compositor: Compositor, full: bool = False, **how: Any) -> object:
        if full:
            return draw(compositor, full=full, **how)
        compositor._dirty_regions.clear()
        return None

    with patch.object(Compositor, "render_update", draw_pictures):
        yield


@pytest.fixture
def daemon() -> Iterator[DashboardDaemon]:
    """A daemon without answers yet."""
    with DashboardDaemon() as serving:
        yield serving
