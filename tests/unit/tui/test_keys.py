"""Every key does what the help says."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from textual.color import Color
from textual.command import CommandList

from ostinatod.tui.commands import COMMANDS, keys_everywhere
from ostinatod.tui.screens.dialogs import Ask, Confirm, Page
from ostinatod.tui.view.heat import Place
from ostinatod.tui.view.help import MODELS, help_lines
from ostinatod.tui.view.keys import PRESETS
from ostinatod.tui.widgets.heat_panel import HeatPanel
from ostinatod.tui.widgets.lists import LogsPanel, RequestsPanel
from tests.fakes import dashboard_states as states
from tests.fakes.dashboard_daemon import DashboardDaemon
from tests.unit.tui.conftest import Running, running

Story = Callable[[Running], Awaitable[None]]


def play(daemon: DashboardDaemon, story: Story, preset: str = "overview") -> None:
    """Tell a story to a dashboard of the daemon."""

    async def run() -> None:
        async with running(daemon, preset=preset) as dashboard:
            await story(dashboard)

    asyncio.run(run())


@pytest.fixture
def daemon(daemon: DashboardDaemon) -> DashboardDaemon:
    daemon.answers = states.gpu(12, 32)
    return daemon


def test_no_two_commands_share_a_key() -> None:
    keys = Counter(key for command in COMMANDS for key in command.keys.split(","))
    assert [key for key, times in keys.items() if times > 1] == []


def test_digits_show_the_presets(daemon: DashboardDaemon) -> None:
    titles = {"1": "Memory", "2": "Experts", "3": "Sessions", "4": "Generations", "5": "Logs"}

    async def story(dashboard: Running) -> None:
        for key, title in titles.items():
            await dashboard.press(key)
            assert dashboard.app.dashboard.preset == PRESETS[int(key) - 1]
            await dashboard.until_shown(title)

    play(daemon, story, preset="logs")


def test_a_preset_asks_only_for_what_it_shows(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        asked = {path.partition("?")[0] for path in daemon.asked}
        assert "/ostinato/sessions" not in asked
        assert "/ostinato/requests" not in asked
        await dashboard.press("3")
        await dashboard.until_shown("c0ffee00")
        assert "/ostinato/sessions?limit=50" in daemon.asked

    play(daemon, story, preset="logs")


def test_question_mark_explains_the_panel_with_the_focus_and_escape_closes(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        await dashboard.press("question_mark")
        assert isinstance(dashboard.app.screen, Page)
        assert "Help: Models" in dashboard.text
        assert "Unload it (asks first)" in dashboard.text
        await dashboard.press("escape", "tab", "question_mark")
        assert "Help: Memory" in dashboard.text
        await dashboard.press("question_mark")
        assert not isinstance(dashboard.app.screen, Page)

    play(daemon, story)


def test_every_key_is_in_the_help() -> None:
    shown = "\n".join("".join(part.text for part in row) for row in help_lines(None, keys_everywhere()))
    others = [command for command in COMMANDS if not command.name.startswith("preset-")]
    assert all(f"{command.shown_key} " in shown and command.does in shown for command in others)
    assert all(preset in shown for preset in PRESETS)


def test_a_key_that_a_panel_explains_is_not_explained_twice() -> None:
    shown = ["".join(part.text for part in row) for row in help_lines(MODELS, keys_everywhere())]
    keys = [row.split()[0] for row in shown if "  " in row]
    assert len(keys) == len(set(keys))
    assert {key for key, _ in MODELS.keys} <= set(keys)


def test_space_pauses_and_goes_on(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        dashboard.app.feed.interval_s = 0.02
        await dashboard.press("space")
        assert "paused" in dashboard.text
        await dashboard.pilot.pause(0.1)
        before = len(daemon.asked)
        await dashboard.pilot.pause(0.3)
        assert len(daemon.asked) == before
        await dashboard.press("space")
        await dashboard.until(lambda: len(daemon.asked) > before, "reading again")
        assert "paused" not in dashboard.text

    play(daemon, story)


def test_plus_and_minus_change_the_pace_and_ctrl_r_reads_at_once(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        before = dashboard.app.rounds
        await dashboard.press("ctrl+r")
        await dashboard.until(lambda: dashboard.app.rounds > before, "another round")
        dashboard.app.feed.interval_s = 1.0
        await dashboard.press("minus")
        assert "every 2 s" in dashboard.text
        await dashboard.press("plus", "plus", "plus", "plus")
        assert "every 0.5 s" in dashboard.text

    play(daemon, story)


def test_t_goes_through_the_themes_and_back(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        seen = []
        for _ in range(4):
            await dashboard.press("t")
            seen.append(dashboard.app.palette.name)
            assert dashboard.app.screen.styles.background == background_of(dashboard)
        assert seen == ["light", "mono", "ascii", "dark"]

    play(daemon, story, preset="logs")


def test_the_ascii_theme_sends_nothing_but_ascii(daemon: DashboardDaemon) -> None:
    daemon.answers = states.hostile()

    async def story(dashboard: Running) -> None:
        await dashboard.press("t", "t", "t")
        for key in "12345":
            await dashboard.press(key)
            assert dashboard.text.isascii(), [letter for letter in dashboard.text if not letter.isascii()]

    play(daemon, story)


def test_m_shows_the_next_model_in_memory_and_enter_the_one_under_the_cursor(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        assert dashboard.app.view.focus == states.MODEL
        await dashboard.press("m")
        await dashboard.until(lambda: dashboard.app.view.focus == "tiny", "the focus on tiny")
        assert "/ostinato/plan?model=tiny" in daemon.asked
        await dashboard.press("home", "enter")
        await dashboard.until(lambda: dashboard.app.view.focus == states.MODEL, "the focus on the first")

    play(daemon, story)


def test_l_loads_the_model_under_the_cursor_and_tells_the_progress(daemon: DashboardDaemon) -> None:
    daemon.answers = states.idle()
    daemon.streams["/ostinato/load"] = [{"status": "loading", "progress": 0.25}, {"status": "ready", "progress": 1.0}]
    daemon.held = threading.Event()

    async def story(dashboard: Running) -> None:
        await dashboard.press("down", "l")
        await dashboard.until(lambda: daemon.posted_to("/ostinato/load"), "the load")
        await dashboard.until(lambda: dashboard.app.jobs.snapshot()[0].share == 0.25, "a quarter")
        await dashboard.next_round()
        assert "loading 25 %" in dashboard.text
        daemon.held.set()
        await dashboard.until_shown("gpt-oss-120b:MXFP4 is ready")
        assert daemon.posted_to("/ostinato/load") == [{"model": "gpt-oss-120b:MXFP4"}]

    play(daemon, story)


def test_l_asks_for_a_name_where_no_model_is_under_the_cursor(daemon: DashboardDaemon) -> None:
    daemon.streams["/ostinato/load"] = [{"status": "ready", "progress": 1.0}]

    async def story(dashboard: Running) -> None:
        await dashboard.press("2", "l")
        assert isinstance(dashboard.app.screen, Ask)
        assert "glm-4.5-air" in dashboard.text
        await dashboard.press(*"tiny", "enter")
        await dashboard.until(lambda: daemon.posted_to("/ostinato/load") == [{"model": "tiny"}], "the load")

    play(daemon, story)


def test_a_load_that_fails_says_why_and_what_to_do(daemon: DashboardDaemon) -> None:
    daemon.answers = states.idle()
    daemon.streams["/ostinato/load"] = [
        {"error": "the engine is not built", "kind": "engine_not_built", "hint": "Build it: ostinato engine build"}
    ]

    async def story(dashboard: Running) -> None:
        await dashboard.press("l")
        await dashboard.until_shown("the engine is not built", "Build it: ostinato engine build")
        await dashboard.next_round()
        assert "load failed" in dashboard.text
        await dashboard.press("enter")
        assert isinstance(dashboard.app.screen, Page)
        assert "Build it: ostinato engine build" in dashboard.text
        await dashboard.press("escape", "down", "enter")
        await dashboard.until_shown("gpt-oss-120b:MXFP4 is not in memory.")

    play(daemon, story)


def test_u_unloads_only_after_a_yes(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        await dashboard.press("u")
        assert isinstance(dashboard.app.screen, Confirm)
        assert f"Unload {states.MODEL}?" in dashboard.text
        await dashboard.press("n")
        await dashboard.press("u", "escape")
        assert not isinstance(dashboard.app.screen, Confirm)
        assert daemon.posted == []
        await dashboard.press("u", "y")
        await dashboard.until_shown(f"unloaded {states.MODEL}")
        assert daemon.posted_to("/ostinato/unload") == [{"model": states.MODEL, "force": False}]

    play(daemon, story)


def test_p_pulls_and_x_stops_it(daemon: DashboardDaemon) -> None:
    part = {"status": "pulling", "all_completed": 3 * 10**9, "all_total": 4 * 10**9}
    daemon.streams["/api/pull"] = [part, part, {"status": "success"}]
    daemon.held = threading.Event()

    async def story(dashboard: Running) -> None:
        await dashboard.press("p", *"acme/moe", "enter")
        await dashboard.until(lambda: daemon.posted_to("/api/pull"), "the pull")
        await dashboard.until(lambda: dashboard.app.jobs.snapshot()[0].share == 0.75, "three quarters")
        await dashboard.next_round()
        assert "pulling 75 %" in dashboard.text
        await dashboard.press("home", "x")
        daemon.held.set()
        await dashboard.until_shown("stopped pulling acme/moe")
        assert daemon.posted_to("/api/pull") == [{"model": "acme/moe", "stream": True}]

    play(daemon, story)


def test_a_pull_that_failed_says_why_on_enter_and_goes_with_x(daemon: DashboardDaemon) -> None:
    daemon.streams["/api/pull"] = [{"error": "the hub does not know it", "kind": "pull_error", "hint": "Look it up"}]

    async def story(dashboard: Running) -> None:
        await dashboard.press("p", *"acme/moe", "enter")
        await dashboard.until_shown("pull failed")
        await dashboard.press("home", "enter")
        assert "the hub does not know it" in dashboard.text
        assert "Look it up" in dashboard.text
        await dashboard.press("escape", "x")
        await dashboard.next_round()
        assert "pull failed" not in dashboard.text

    play(daemon, story)


def test_q_asks_before_it_stops_a_pull(daemon: DashboardDaemon) -> None:
    daemon.streams["/api/pull"] = [{"status": "pulling manifest"}, {"status": "success"}]
    daemon.held = threading.Event()

    async def story(dashboard: Running) -> None:
        await dashboard.press("p", *"a/b", "enter")
        await dashboard.until(lambda: dashboard.app.jobs.running_pulls(), "the pull")
        await dashboard.press("q")
        assert isinstance(dashboard.app.screen, Confirm)
        await dashboard.press("n")
        assert dashboard.app.is_running
        daemon.held.set()
        await dashboard.until_shown("pulled a/b")
        await dashboard.press("q")
        assert dashboard.app.return_code == 0

    play(daemon, story)


def test_x_cancels_the_request_under_the_cursor_only_after_a_yes(daemon: DashboardDaemon) -> None:
    daemon.posts["/ostinato/cancel"] = (200, {"status": "success", "was_running": True})

    async def story(dashboard: Running) -> None:
        await dashboard.press("down", "x")
        await dashboard.until_shown("No request in flight is chosen")
        await dashboard.press("up", "x")
        assert "Cancel this request?" in dashboard.text
        await dashboard.press("y")
        await dashboard.until_shown("cancelled the request")
        assert daemon.posted_to("/ostinato/cancel") == [{"id": "req-1000"}]

    play(daemon, story, preset="requests")


def test_r_plans_again(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        before = sum("/ostinato/plan" in path for path in daemon.asked)
        await dashboard.press("r")
        assert dashboard.app.dashboard.preset == "learning"
        await dashboard.until(lambda: sum("/ostinato/plan" in path for path in daemon.asked) > before, "a plan")

    play(daemon, story)


@pytest.mark.parametrize(
    ("key", "question", "action", "told"),
    [
        ("a", "Apply the proposal?", "apply", "generation 8 is in use, 412 experts moved"),
        ("z", "Undo the last generation?", "undo", "went back: generation 8 is in use, 412 experts moved"),
    ],
)
def test_a_applies_and_z_undoes_only_after_a_yes(
    daemon: DashboardDaemon, key: str, question: str, action: str, told: str
) -> None:
    daemon.posts["/ostinato/plan"] = (200, {"status": "success", "generation": 8, "moved": 412, "swap_ms": 81.0})

    async def story(dashboard: Running) -> None:
        await dashboard.press(key)
        assert question in dashboard.text
        await dashboard.press("escape")
        assert daemon.posted == []
        await dashboard.press(key, "y")
        await dashboard.until_shown(told)
        assert daemon.posted_to("/ostinato/plan") == [{"model": states.MODEL, "action": action}]

    play(daemon, story, preset="learning")


def test_a_says_when_nothing_is_proposed(daemon: DashboardDaemon) -> None:
    daemon.answers = states.busy_cpu()

    async def story(dashboard: Running) -> None:
        await dashboard.press("a")
        await dashboard.until_shown("Nothing is proposed.", "no gain expected")
        await dashboard.press("z")
        await dashboard.until_shown("There is no generation to go back to.")
        assert daemon.posted == []

    play(daemon, story)


def test_arrows_read_cells_of_the_map(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        panel = dashboard.app.dashboard.panel(HeatPanel)
        assert panel is not None
        await dashboard.press("right", "right", "down", "shift+down", "end")
        assert panel.options.cursor == Place(9, 31)
        assert "layer 12" in dashboard.text
        assert "rank 32 of 32" in dashboard.text
        await dashboard.press("home", "up", "left")
        assert panel.options.cursor == Place(8, 0)
        await dashboard.press("escape")
        assert panel.options.cursor is None

    play(daemon, story, preset="experts")


def test_o_and_c_keep_the_cursor_on_its_expert(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        panel = dashboard.app.dashboard.panel(HeatPanel)
        assert panel is not None
        await dashboard.press("right", "right", "o")
        assert panel.options.cursor is not None
        assert panel._grid is not None
        expert = int(panel._grid.experts[0, panel.options.cursor.position])
        assert panel.options.cursor.position == expert
        await dashboard.press("c", "c")
        assert panel.options.phase == "decode"
        assert f"expert {expert}" in dashboard.text

    play(daemon, story, preset="experts")


def test_enter_on_a_session_filters_the_requests(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        await dashboard.press("shift+tab", "down", "enter")
        panel = dashboard.app.dashboard.panel(RequestsPanel)
        assert panel is not None
        assert panel.session == "b7aa1234"
        assert len(panel._rows) == sum(request["session"] == "b7aa1234" for request in all_requests())
        await dashboard.press("enter")
        assert panel.session is None

    play(daemon, story, preset="requests")


def all_requests() -> list[dict[str, object]]:
    answer = states.gpu()["/ostinato/requests"]
    return [*answer["in_flight"], *answer["requests"]]


def test_enter_on_a_request_tells_why_its_prefix_broke(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        await dashboard.press("down", "down", "down", "down", "enter")
        assert "tools changed, 26,400 tokens read again" in dashboard.text
        assert "the description of the tool read_file changed" in dashboard.text

    play(daemon, story, preset="requests")


def test_the_list_of_requests_stays_on_its_row_when_new_ones_come(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        await dashboard.press("down", "down")
        panel = dashboard.app.dashboard.panel(RequestsPanel)
        assert panel is not None
        key = panel.cursor_key
        daemon.answers["/ostinato/requests"]["requests"].insert(0, states.request(1, id="newer"))
        await dashboard.next_round()
        assert panel.cursor_key == key
        assert panel._at == 3

    play(daemon, story, preset="requests")


def test_logs_follow_stay_filter_and_change_their_source(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        panel = dashboard.app.dashboard.panel(LogsPanel)
        assert panel is not None
        assert panel.follows
        assert "ms=939" in dashboard.text
        await dashboard.press("home")
        assert not panel.follows
        assert "ms=900" in dashboard.text
        await dashboard.press("f")
        assert panel.follows
        assert "ms=939" in dashboard.text
        await dashboard.press("slash", *"error", "enter")
        assert "engine_died" in dashboard.text
        assert "ms=939" not in dashboard.text
        await dashboard.press("slash")
        assert isinstance(dashboard.app.screen, Ask)
        await dashboard.press("escape", "s")
        await dashboard.until(lambda: any("source=qwen3" in path for path in daemon.asked), "the engine's log")

    play(daemon, story, preset="logs")


def test_enter_on_a_log_line_shows_all_of_it(daemon: DashboardDaemon) -> None:
    long = "2025-11-30 00:00:00,000 INFO " + "word " * 60 + "end-of-line"
    daemon.answers["/ostinato/logs"] = {"lines": ["first", long]}

    async def story(dashboard: Running) -> None:
        assert "end-of-line" not in dashboard.text
        await dashboard.press("end", "enter")
        assert "end-of-line" in dashboard.text

    play(daemon, story, preset="logs")


def test_the_command_palette_offers_every_command(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        offered = {command.title for command in dashboard.app.get_system_commands(dashboard.app.screen)}
        assert {f"{command.title}  ({command.shown_key})" for command in COMMANDS} <= offered
        await dashboard.press("ctrl+p", *"theme: light")
        found = dashboard.app.screen.query_one(CommandList)
        await dashboard.until(
            lambda: (option := found.highlighted_option) is not None and "light" in str(option.prompt), "it is found"
        )
        await dashboard.press("enter")
        await dashboard.until(lambda: dashboard.app.palette.name == "light", "the light theme")

    play(daemon, story)


def test_tab_visits_every_panel_on_the_screen_and_no_other(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        visited = []
        for _ in range(6):
            visited.append(getattr(dashboard.app.focused, "TITLE", ""))
            await dashboard.press("tab")
        assert visited == ["Models", "Memory", "Experts", "Hit rates", "Latency", "Requests"]
        assert getattr(dashboard.app.focused, "TITLE", "") == "Models"

    play(daemon, story)


def test_a_click_moves_the_cursor_and_a_second_one_opens(daemon: DashboardDaemon) -> None:
    async def story(dashboard: Running) -> None:
        panel = dashboard.app.dashboard.panel(RequestsPanel)
        assert panel is not None
        await dashboard.pilot.click(panel, offset=(10, 4))
        assert panel._at == 2
        await dashboard.pilot.double_click(panel, offset=(10, 4))
        await dashboard.until(lambda: isinstance(dashboard.app.screen, Page), "the page of the request")

    play(daemon, story, preset="requests")


@pytest.mark.parametrize("name", ["light", "mono"])
def test_the_theme_asked_for_is_on_from_the_start(daemon: DashboardDaemon, name: str) -> None:
    async def run() -> None:
        async with running(daemon, theme=name, preset="logs") as dashboard:
            assert dashboard.app.screen.styles.background == background_of(dashboard)

    asyncio.run(run())


def background_of(dashboard: Running) -> Color:
    """What the theme that is on has for a background."""
    return Color.parse(str(dashboard.app.palette.theme.background))
