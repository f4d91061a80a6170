"""The application: themes, dialogs, and the moments that the feed brings. What keys do is in `commands`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.message import Message
from textual.screen import Screen

from ostinatod.client_dashboard import DashboardClient
from ostinatod.client_dashboard_values import NOT_ASKED
from ostinatod.tui import choices, commands
from ostinatod.tui.feed import Asked, Feed, Measure, Round
from ostinatod.tui.jobs import Jobs
from ostinatod.tui.palette import Palette, palettes
from ostinatod.tui.screens.dashboard import Dashboard
from ostinatod.tui.screens.dialogs import Confirm
from ostinatod.tui.view.inert import ascii_only, inert
from ostinatod.tui.view.state import Host, Job, View
from ostinatod.tui.widgets.list_panel import ListPanel
from ostinatod.tui.widgets.panels import DetailPanel

INTERVALS_S = (0.5, 1.0, 2.0, 5.0, 10.0)


class DashboardApp(App[None]):
    """The dashboard of the daemon that `connect` makes clients of. `clock` is the wall clock in seconds."""

    TITLE = "ostinato"
    CSS_PATH = "ostinato.tcss"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(command.keys, f"command('{command.name}')", command.title, show=False) for command in commands.COMMANDS
    ]

    class RoundDone(Message):
        """The feed has read the daemon."""

        def __init__(self, found: Round) -> None:
            super().__init__()
            self.found = found

    class FeedFailed(Message):
        """The feed has stopped on a fault of this program."""

        def __init__(self, error: Exception) -> None:
            super().__init__()
            self.error = error

    class JobEnded(Message):
        """A job is done or has failed."""

        def __init__(self, job: Job) -> None:
            super().__init__()
            self.job = job

    def __init__(
        self,
        connect: Callable[[], DashboardClient],
        *,
        theme: str = "dark",
        preset: str = "overview",
        interval_s: float = 1.0,
        no_colour: bool = False,
        clock: Callable[[], float] = time.time,
        measure: Measure | None = None,
    ) -> None:
        # With ANSI colours asked for from the start, Textual's answer to NO_COLOR removes all colours, not only hues.
        self.palettes = palettes()
        super().__init__(ansi_color=True if no_colour else None)
        self.animation_level = "none"
        for palette in self.palettes.values():
            self.register_theme(palette.theme)
        self.palette: Palette = self.palettes[theme]
        self.no_colour = no_colour
        self.rounds = 0
        """Rounds shown since the start."""
        self.jobs = Jobs(connect, lambda job: self.post_message(self.JobEnded(job)))
        self.feed = Feed(
            connect,
            lambda found: self.post_message(self.RoundDone(found)),
            lambda error: self.post_message(self.FeedFailed(error)),
            interval_s=interval_s,
            clock=clock,
            measure=measure,
        )
        self.wanted_focus: str | None = None
        self.log_source = "daemon"
        self._clock = clock
        self._link = self.feed.link
        self._last: Round | None = None
        self.dashboard = Dashboard(preset, self.palette)
        # Before the first style sheet is read, whose reading takes as long as all the rest of the start.
        self.theme = self.palette.theme.name

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The names of ours that the style sheet uses, until one of our themes is on."""
        return dict(self.palettes["mono"].theme.variables)

    def get_default_screen(self) -> Screen[None]:
        """The dashboard, below everything that opens."""
        return self.dashboard

    def on_ready(self) -> None:
        """Begin to read."""
        self.ask()
        self.feed.start()

    def on_unmount(self) -> None:
        """Stop reading."""
        self.feed.close()

    @property
    def view(self) -> View:
        """This moment."""
        last = self._last
        return View(
            link=last.link if last else self._link,
            symbols=self.palette.symbols,
            now_s=self._clock(),
            reading=last.reading if last else None,
            focus=last.focus if last else None,
            experts=last.experts if last else NOT_ASKED,
            host=last.host if last else Host(),
            jobs=self.jobs.snapshot(),
            is_paused=self.feed.is_paused,
            interval_s=self.feed.interval_s,
            log_source=self.log_source,
        )

    def show(self) -> None:
        """Show this moment."""
        # A round may come while the dashboard is being taken down.
        with suppress(NoMatches):
            if self.dashboard.is_mounted:
                self.dashboard.show(self.view)

    def ask(self) -> None:
        """Tell the feed what is on the screen."""
        if self.dashboard.is_mounted:
            self.feed.ask(Asked(self.dashboard.parts(), self.wanted_focus, self.log_source))

    def choose_preset(self, preset: str) -> None:
        """Show other panels."""
        self.dashboard.choose(preset)
        self.show()
        self.ask()

    def choose_theme(self, name: str) -> None:
        """Show everything in another theme."""
        self.palette = self.palettes[name]
        self.theme = self.palette.theme.name
        self.dashboard.paint(self.palette)
        self.show()

    def confirm(self, title: str, lines: Iterable[str], yes: str, do: Callable[[], object]) -> None:
        """Do something only if the user says so."""

        def answered(is_yes: bool | None) -> None:
            if is_yes:
                do()
                self.show()

        self.push_screen(Confirm(title, tuple(lines), yes, is_ascii=self.palette.symbols.is_ascii), answered)

    def say(self, text: str, *, is_bad: bool = False, hint: str = "") -> None:
        """Tell the user something for a while."""
        shown = "\n".join(inert(part) for part in (text, hint) if part)
        if self.palette.symbols.is_ascii:
            shown = ascii_only(shown)
        self.notify(shown, severity="error" if is_bad else "information", timeout=8 if is_bad else 4, markup=False)

    def action_command(self, name: str) -> None:
        """Do what a key stands for."""
        commands.named(name).run(self)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the command palette offers: everything that has a key, and every theme."""
        for command in commands.COMMANDS:
            yield SystemCommand(
                f"{command.title}  ({command.shown_key})", command.does, lambda run=command.run: run(self)
            )
        for name in self.palettes:
            yield SystemCommand(
                f"Theme: {name}", "Show everything in this theme", lambda name=name: self.choose_theme(name)
            )

    def on_dashboard_app_round_done(self, message: RoundDone) -> None:
        """Show what was read."""
        self._last = message.found
        self.show()
        self.rounds += 1

    def on_dashboard_app_feed_failed(self, message: FeedFailed) -> None:
        """End with the traceback."""
        raise message.error

    def on_dashboard_app_job_ended(self, message: JobEnded) -> None:
        """Say how it ended, and read what it has changed."""
        job = message.job
        if job.state == "failed":
            self.say(job.error, is_bad=True, hint=job.hint)
        else:
            self.say(job.step)
        self.feed.refresh()

    def on_list_panel_chosen(self, message: ListPanel.Chosen) -> None:
        """Open a row."""
        choices.open_row(self, message.panel, message.key)

    def on_list_panel_moved(self, message: ListPanel.Moved) -> None:
        """Show the request under the cursor."""
        detail = self.dashboard.panel(DetailPanel)
        if detail is not None and message.panel.TITLE == "Requests":
            detail.request_id = message.key
            detail.update_lines()
