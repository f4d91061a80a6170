"""Every command prints JSON for programs, and only that, on stdout."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest

from ostinatod.cli.app import cli
from tests.fakes.daemon import FakeDaemon, listing, running
from tests.unit.cli.conftest import Invoke

WITHOUT_JSON = {
    "serve": "runs until it is stopped and prints its log",
    "tui": "is a screen",
}


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def test_every_command_has_json_except_those_that_are_listed() -> None:
    without = {
        name
        for name, command in commands(cli)
        if not any("--json" in parameter.opts for parameter in command.params if isinstance(parameter, click.Option))
    }
    assert without == set(WITHOUT_JSON) & {name for name, _ in commands(cli)}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("pull", "org/repo"),
            {
                "name": "org/repo",
                "source": "hub",
                "parts": ["/models/a-00001-of-00002.gguf", "/models/a-00002-of-00002.gguf"],
            },
        ),
        (("stop", "tiny"), {"stopped": ["tiny"], "daemon": False}),
        (("rm", "tiny"), [{"model": "tiny", "freed_bytes": 9_600_000_000}]),
        (("cp", "tiny", "mine"), {"source": "tiny", "destination": "mine"}),
    ],
)
def test_commands_that_change_something_say_what(
    invoke: Invoke, daemon: FakeDaemon, arguments: tuple[str, ...], told: object
) -> None:
    daemon.models["org/repo"] = listing("org/repo")
    result = invoke(*arguments, "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (0, told)


def test_a_load_says_how_long_it_took_and_shows_its_progress_on_stderr(invoke: Invoke, daemon: FakeDaemon) -> None:
    daemon.load_steps = [{"status": "loading", "progress": 0.5}, {"status": "ready"}]
    result = invoke("load", "tiny", "--json")
    told = json.loads(result.stdout)
    assert (told["model"], told["state"], told["load_ms"] > 0) == ("tiny", "ready", True)
    assert "loading tiny: 50 %" in result.stderr


def test_what_fails_says_so_on_stderr_and_leaves_stdout_to_what_succeeded(invoke: Invoke, daemon: FakeDaemon) -> None:
    result = invoke("rm", "missing", "tiny", "--json")
    assert [item["model"] for item in json.loads(result.stdout)] == ["tiny"]
    assert (result.exit_code, "model 'missing' not found" in result.stderr) == (4, True)
    failed = invoke("show", "missing", "--json")
    assert (failed.exit_code, failed.stdout) == (4, "")


@pytest.mark.parametrize("arguments", [("list",), ("ps",), ("show", "tiny"), ("status",), ("version",), ("doctor",)])
def test_no_colour_where_none_is_wanted(invoke: Invoke, daemon: FakeDaemon, arguments: tuple[str, ...]) -> None:
    daemon.running = [running("tiny")]
    assert "\x1b" not in invoke(*arguments, NO_COLOR="1").output


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("lisst", "list"), ("docter", "doctor"), ("engine statsu", "status"), ("service instal", "install")],
)
def test_a_mistyped_command_suggests_the_right_one(invoke: Invoke, typed: str, meant: str) -> None:
    result = invoke(*typed.split())
    assert result.exit_code == 2
    assert "Did you mean: " in result.stderr
    assert meant in result.stderr.rpartition("Did you mean: ")[2]


def test_a_mistyped_option_suggests_the_right_one(invoke: Invoke) -> None:
    result = invoke("list", "--jsn")
    assert (result.exit_code, "--json" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("list --host 127.0.0.1:1", "--host belongs before the command: ostinato --host ... list"),
        ("engine status --debug", "--debug belongs before the command: ostinato --debug ... engine status"),
        ("--json list", "--json belongs behind a command, such as: ostinato list --json"),
        ("--nonsense list", "No such option '--nonsense'."),
    ],
)
def test_an_option_at_the_wrong_side_of_the_command_is_told_its_place(invoke: Invoke, typed: str, said: str) -> None:
    result = invoke(*typed.split())
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, f"Error: {said}")


@pytest.mark.parametrize(
    ("typed", "meant"), [("launch clade", "claude"), ("tui overvew", "overview"), ("completion show fsh", "fish")]
)
def test_a_mistyped_choice_suggests_the_right_one(invoke: Invoke, typed: str, meant: str) -> None:
    result = invoke(*typed.split())
    assert result.exit_code == 2
    assert meant in result.stderr.rpartition("Did you mean: ")[2]


def test_a_choice_that_is_close_to_none_suggests_none(invoke: Invoke) -> None:
    assert "Did you mean" not in invoke("launch", "xyzzy").stderr


def test_no_summary_of_a_command_is_cut_in_80_columns() -> None:
    groups = [cli, *(command for command in cli.commands.values() if isinstance(command, click.Group))]
    cut = {
        f"{group.name} {name}"
        for group in groups
        for name, command in group.commands.items()
        if command.get_short_help_str(78 - 6 - max(map(len, group.commands))).endswith("...")
    }
    assert cut == set()
