"""What the dashboard does when the daemon is not there, comes back, is older, or says something odd."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from ostinatod.client_dashboard import DashboardClient
from ostinatod.client_dashboard_values import DaemonState, Unavailable
from ostinatod.tui.feed import Asked, Feed, Round
from ostinatod.tui.screens.dialogs import Confirm
from ostinatod.tui.view.state import Host
from ostinatod.tui.widgets.panel import Lines
from tests.conftest import free_port
from tests.fakes import dashboard_states as states
from tests.fakes.dashboard_daemon import DashboardDaemon
from tests.unit.tui.conftest import ADDRESS, PATIENCE_S, Running, running

Story = Callable[[Running], Awaitable[None]]


def play(daemon: DashboardDaemon, story: Story, **options: str) -> None:
    """Tell a story to a dashboard of the daemon."""

    async def run() -> None:
        async with running(daemon, **options) as dashboard:  # type: ignore[arg-type]
            await story(dashboard)

    asyncio.run(run())


def test_a_daemon_that_is_not_running_is_waited_for_and_one_that_restarts_is_found_again() -> None:
    port = free_port()
    absent = DashboardDaemon(port=port)

    async def story(dashboard: Running) -> None:
        assert "no daemon for 0 s  Start it: ostinato serve" in dashboard.text
        assert f"no daemon answers at {ADDRESS}" in dashboard.text
        with DashboardDaemon(states.gpu(6, 16), port=port):
            await dashboard.next_round()
            assert f"{states.MODEL}  busy" in dashboard.text
            assert "22.9/24.0" in dashboard.text
        await dashboard.next_round()
        assert "no daemon" in dashboard.text
        # What it told before is gone: old figures would pass for new ones.
        assert states.MODEL not in dashboard.text
        with DashboardDaemon(states.idle(), port=port):
            await dashboard.next_round()
            assert "no model is in memory" in dashboard.text

    play(absent, story)


def test_an_older_daemon_gets_what_it_knows_shown_and_the_rest_named(daemon: DashboardDaemon) -> None:
    daemon.answers = states.older()

    async def story(dashboard: Running) -> None:
        assert "4 layers" in dashboard.text
        assert "/ostinato/requests" in dashboard.text
        assert "ostinato stop --daemon" in dashboard.text
        await dashboard.press("4")
        await dashboard.until_shown("/ostinato/plan")
        await dashboard.press("5")
        await dashboard.until_shown("/ostinato/logs")

    play(daemon, story)


def test_a_part_that_is_not_understood_hides_no_other(daemon: DashboardDaemon) -> None:
    daemon.answers = {**states.gpu(6, 16), "/ostinato/routes": {"layers": [1, 2], "prefill": [[1]], "decode": [[1]]}}

    async def story(dashboard: Running) -> None:
        assert isinstance(dashboard.app.view.reading and dashboard.app.view.reading.routes, Unavailable)
        assert "the daemon's answer is not understood" in dashboard.text
        assert "tools changed, 26.4k lost" in dashboard.text

    play(daemon, story)


def test_a_model_that_is_unloaded_gives_the_focus_to_the_next(daemon: DashboardDaemon) -> None:
    daemon.answers = states.gpu(6, 16)

    async def story(dashboard: Running) -> None:
        daemon.answers["/ostinato/status"] = states.status(states.model("tiny"))
        await dashboard.next_round()
        assert dashboard.app.view.focus == "tiny"
        assert any(path == "/ostinato/routes?model=tiny" for path in daemon.asked)

    play(daemon, story)


def test_answers_that_have_not_changed_are_the_same_values_and_send_nothing_to_the_terminal(
    daemon: DashboardDaemon,
) -> None:
    daemon.answers = states.gpu(6, 16)

    async def story(dashboard: Running) -> None:
        before = dashboard.app.view
        assert before.reading is not None
        drawn: list[str] = []
        for lines in dashboard.app.dashboard.query(Lines):
            lines.refresh = lambda *regions, **options: drawn.append("a line")  # type: ignore[method-assign]
        await dashboard.next_round()
        after = dashboard.app.view
        assert after.reading is not None
        assert after.reading.routes is before.reading.routes
        assert after.experts is before.experts
        assert drawn == []

    play(daemon, story)


def test_slow_parts_are_not_read_with_every_round(daemon: DashboardDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.answers = states.gpu(6, 16)
    rounds: list[Round] = []
    faults: list[Exception] = []
    # A clock that tells a second for every round, however long it took.
    monkeypatch.setattr("ostinatod.tui.feed.time", SimpleNamespace(monotonic=lambda: float(len(rounds))))

    def deliver(found: Round) -> None:
        rounds.append(found)
        if len(rounds) == 12:
            feed.close()

    feed = Feed(lambda: DashboardClient(daemon.url), deliver, faults.append, interval_s=1.0)
    feed.ask(Asked(frozenset({"listings", "requests"})))
    feed.start()
    feed.join(PATIENCE_S)
    assert faults == []
    assert daemon.asked.count("/ostinato/status") == daemon.asked.count("/ostinato/requests?limit=50") == 12
    assert daemon.asked.count("/api/tags") == 2, "with the first round and ten seconds later"


def test_a_fault_of_the_feed_is_handed_on_instead_of_freezing_the_screen(daemon: DashboardDaemon) -> None:
    daemon.answers = states.gpu(6, 16)
    faults: list[Exception] = []

    def measure(daemon: DaemonState | None, now_s: float) -> Host:
        raise ZeroDivisionError

    feed = Feed(lambda: DashboardClient(daemon.url), print, faults.append, interval_s=1.0, measure=measure)
    feed.start()
    feed.join(PATIENCE_S)
    assert [type(fault) for fault in faults] == [ZeroDivisionError]


def test_hostile_strings_are_shown_as_text(daemon: DashboardDaemon) -> None:
    daemon.answers = states.hostile()

    async def story(dashboard: Running) -> None:
        for key in "12345":
            await dashboard.press(key)
            await dashboard.next_round()
            assert "[bold red]x[/]" in dashboard.text or key == "2"
            assert not {letter for letter in dashboard.text if ord(letter) < 32} - {"\n"}
            assert "\x9b" not in dashboard.text
            assert "\u202e" not in dashboard.text
        await dashboard.press("1", "u")
        assert isinstance(dashboard.app.screen, Confirm)
        assert "Unload \N{REPLACEMENT CHARACTER}[31mred" in dashboard.text
        assert "[bold red]x[/]" in dashboard.text
        await dashboard.press("escape", "3", "enter")
        assert "[bold red]x[/]" in dashboard.text

    play(daemon, story)
