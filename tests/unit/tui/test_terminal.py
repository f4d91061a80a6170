"""The dashboard as a person starts it: the command, in a real terminal."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ostinatod.cli.app import cli
from ostinatod.tui.view.symbols import UNICODE
from tests.fakes import dashboard_states as states
from tests.fakes.dashboard_daemon import DashboardDaemon
from tests.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("THE REAL TERMINAL IS NOT TESTED: tmux is missing (apt install tmux)")
    running = Terminal(tmp_path)
    yield running
    running.close()


def command(daemon: DashboardDaemon, *arguments: str) -> str:
    words = (sys.executable, "-m", "ostinatod", "--host", f"127.0.0.1:{daemon.port}", "tui", *arguments)
    return " ".join(shlex.quote(word) for word in words)


def test_it_runs_in_a_real_terminal_answers_keys_and_leaves_it_clean(
    terminal: Terminal, daemon: DashboardDaemon, tmp_path: Path
) -> None:
    daemon.answers = states.gpu()
    terminal.start(command(daemon), (100, 30), OSTINATO_HOME=str(tmp_path), TERM="tmux-256color", LC_ALL="C.UTF-8")
    shown = terminal.until_shown(states.MODEL, "generation 7", f"61{UNICODE.times}256", "GPU 1")
    rows = shown.splitlines()
    assert len(rows) == 30
    assert all(len(row) <= 100 for row in rows)
    assert rows[2].startswith("╭─ Models ")
    assert "[38;" in terminal.screen(with_colours=True)
    terminal.press("4")
    terminal.until_shown("Generations", "rolled back")
    terminal.press("q")
    terminal.until_shown("ended with 0")
    assert "Generations" not in terminal.screen()


def test_no_color_sends_no_colour(terminal: Terminal, daemon: DashboardDaemon, tmp_path: Path) -> None:
    daemon.answers = states.gpu()
    environment = {"OSTINATO_HOME": str(tmp_path), "TERM": "tmux-256color", "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
    terminal.start(command(daemon), (100, 30), **environment)
    terminal.until_shown(states.MODEL, f"61{UNICODE.times}256")
    codes = [part.split("m")[0] for part in terminal.screen(with_colours=True).split("\x1b[")[1:]]
    colours = {number for code in codes for number in code.split(";") if number.isdigit() and 30 <= int(number) <= 107}
    assert colours <= {"39", "49"}


def test_hostile_names_change_nothing_in_a_real_terminal(
    terminal: Terminal, daemon: DashboardDaemon, tmp_path: Path
) -> None:
    daemon.answers = states.hostile()
    terminal.start(
        command(daemon, "logs"), (100, 30), OSTINATO_HOME=str(tmp_path), TERM="tmux-256color", LC_ALL="C.UTF-8"
    )
    shown = terminal.until_shown("[31mred", "[link=file:///etc/passwd]here[/link]")
    assert shown.splitlines()[2].startswith("╭─ Logs ")


def test_without_a_terminal_it_says_what_to_run_instead() -> None:
    done = CliRunner().invoke(cli, ["tui"], prog_name="ostinato")
    assert done.exit_code == 2
    assert "needs a terminal" in done.stderr
    assert "ostinato status" in done.stderr


def test_the_library_of_the_dashboard_is_imported_only_by_its_command() -> None:
    program = "import sys; from ostinatod.cli.app import cli; print('textual' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert done.stdout == "False\n"
