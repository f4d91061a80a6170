from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from ostinatod.cli.app import ALIASES, cli
from ostinatod.cli.reference import json_keys, reference
from ostinatod.installer.build_cache import SERVER_NAME, BuildCache
from tests.fakes.daemon import FakeDaemon, running
from tests.unit.cli.conftest import Invoke

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"


def command_names(group: click.Group, prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, command in group.commands.items():
        names.append(prefix + name)
        if isinstance(command, click.Group):
            names += command_names(command, f"{prefix}{name} ")
    return names


def flat(value: dict[str, Any]) -> set[str]:
    """The keys of a JSON object, with those of `usage` and `timings` behind a dot."""
    keys = set(value)
    for outer in {"usage", "timings"} & keys:
        keys = keys - {outer} | {f"{outer}.{inner}" for inner in value[outer]}
    return keys


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run: python -m ostinatod.cli.reference > docs/cli.md"


@pytest.mark.parametrize("name", [*command_names(cli), *ALIASES])
def test_every_command_is_in_the_page_with_a_help_text(name: str) -> None:
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")
    if name not in ALIASES:
        command: click.Command = cli
        for part in name.split():
            assert isinstance(command, click.Group)
            command = command.commands[part]
        assert command.help
        assert all(option.help for option in command.params if isinstance(option, click.Option))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("list", ()),
        ("ps", ()),
        ("show", ("tiny",)),
        ("run", ("tiny", "hi")),
        ("version", ()),
        ("pull", ("tiny",)),
        ("load", ("tiny",)),
        ("stop", ("tiny",)),
        ("rm", ("tiny",)),
        ("cp", ("tiny", "mine")),
        ("prune", ("--yes",)),
        ("logs", ("output",)),
        ("doctor", ()),
        ("service status", ()),
        ("completion show", ("bash",)),
    ],
)
def test_the_keys_in_the_page_are_the_keys_printed(
    invoke: Invoke, daemon: FakeDaemon, home: Path, name: str, arguments: tuple[str, ...]
) -> None:
    daemon.running = [running("tiny")]
    (home / "logs").mkdir(parents=True)
    (home / "logs" / "daemon.log").touch()
    printed = json.loads(invoke(*name.split(), *arguments, "--json").stdout)
    assert flat(printed[0] if isinstance(printed, list) else printed) == set(json_keys()[name])


def test_the_keys_of_an_engine_build_are_the_keys_printed(invoke: Invoke, tmp_path: Path) -> None:
    binaries, cache = tmp_path / "bin", BuildCache(tmp_path / "cache")
    binaries.mkdir()
    (binaries / SERVER_NAME).touch(mode=0o755)
    note = {"backend": "cpu", "llama_cpp_commit": "c", "sources_digest": "s"}
    cache.make_current(cache.install(binaries, "0123456789abcdef" * 4, note))
    printed = json.loads(invoke("engine", "status", "--json", OSTINATO_ENGINE_CACHE=str(cache.root)).stdout)
    assert flat(printed) == set(json_keys()["engine status"])
    assert printed["up_to_date"] is False
    assert json_keys()["engine status"][:-1] == json_keys()["engine build"]
