"""Writes the reference of the command line as Markdown: `python -m ostinatod.cli.reference > docs/cli.md`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Sequence

import click

from ostinatod import errors
from ostinatod.cli.answer import Answer, AnswerTimings
from ostinatod.cli.app import ALIASES, INTERRUPTED, cli
from ostinatod.cli.models import Removed
from ostinatod.cli.repl import HELP
from ostinatod.client_values import ModelDetails, ModelListing, Pruned, RunningModel, Usage
from ostinatod.service.host import ServiceState

_WIDTH = 200

_INTRODUCTION = """\
# The command line

Data goes to stdout; progress and everything said to you goes to stderr. Bars become plain lines where stderr is not a
terminal. `NO_COLOR` turns colour off. Text from models and names is shown without control characters on a terminal, and
reaches files and pipes unchanged.

The daemon is found at `--host`, else `OSTINATO_HOST`, else the settings file, else 127.0.0.1:11435. `ostinato run`
starts one if none is running; its log is `daemon.log` in the log directory.

Every command but `serve` and the dashboard has `--json`. Errors go to stderr in either case, and end with the next
command to type. Mistyped commands, options and models are answered with what may have been meant.

`ostinato completion install` completes commands, options and the names of models in bash, zsh and fish.

This page is generated: `python -m ostinatod.cli.reference > docs/cli.md`."""

_NUMBERED = {
    0: "done",
    1: "an error, or `doctor` found something that will fail",
    2: "wrong usage, setting, name or request",
    3: "no daemon answers",
    4: "there is no such model, file or log",
    5: "the disk is too full",
    INTERRUPTED: "interrupted",
}


def json_keys() -> dict[str, tuple[str, ...]]:
    """The keys that each command prints with --json, where they are fixed; dots lead into an inner object."""
    answer = [key for key in _keys(Answer) if key not in ("usage", "timings")]
    engine = ("backend", "digest", "directory", "server", "library_directory")
    service = _keys(ServiceState)
    return {
        "pull": ("name", "source", "parts"),
        "load": ("model", "state", "load_ms"),
        "stop": ("stopped", "daemon"),
        "rm": _keys(Removed),
        "cp": ("source", "destination"),
        "prune": _keys(Pruned),
        "logs": ("source", "file", "lines"),
        "doctor": ("ok", "problems", "warnings", "findings"),
        "service install": (*service, "changed", "answers"),
        "service uninstall": ("removed",),
        "service status": service,
        "service restart": (*service, "answers"),
        "completion show": ("shell", "script"),
        "completion install": ("shell", "file", "changed"),
        "completion uninstall": ("removed",),
        "list": _keys(ModelListing),
        "ps": _keys(RunningModel),
        "show": _keys(ModelDetails),
        "run": (
            "model",
            *answer,
            *(f"usage.{key}" for key in _keys(Usage)),
            *(f"timings.{key}" for key in _keys(AnswerTimings)),
        ),
        "engine build": engine,
        "engine status": (*engine, "up_to_date"),
        "version": ("client", "daemon", "api"),
    }


def reference() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, "## Options for every command", *_options(cli, "ostinato"), "## Commands"]
    for name, command in _commands(cli, ""):
        parts.extend(_command(name, command))
    parts += ["## In a conversation", "\n".join(f"    {line}".rstrip() for line in HELP.splitlines())]
    parts += ["## Exit codes", "\n".join(_exit_codes())]
    return "\n\n".join(parts) + "\n"


def _commands(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield f"{prefix}{name}", command
        if isinstance(command, click.Group):
            yield from _commands(command, f"{prefix}{name} ")


def _command(name: str, command: click.Command) -> Iterator[str]:
    aliases = [alias for alias, target in ALIASES.items() if target == name]
    yield f"### {', '.join(f'`{spelling}`' for spelling in [name, *aliases])}"
    context = click.Context(command, info_name=f"ostinato {name}", terminal_width=_WIDTH)
    yield f"    ostinato {name} {' '.join(command.collect_usage_pieces(context))}"
    yield inspect.cleandoc(command.help or "")
    yield from _options(command, f"ostinato {name}")
    if keys := json_keys().get(name):
        yield f"JSON keys: {', '.join(f'`{key}`' for key in keys)}."


def _options(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name, terminal_width=_WIDTH)
    options = [option for option in command.params if isinstance(option, click.Option)]
    records = [record for option in options if (record := option.get_help_record(context))]
    if records:
        yield "\n".join(f"- `{spelling}`: {text}" for spelling, text in records)


def _exit_codes() -> Iterator[str]:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    yield "| code | meaning | errors |"
    yield "|---|---|---|"
    for code, meaning in _NUMBERED.items():
        kinds = sorted(
            {item.kind for item in classes if issubclass(item, errors.OstinatoError) and item.exit_code == code}
        )
        yield f"| {code} | {meaning} | {', '.join(f'`{kind}`' for kind in kinds)} |"


def _keys(values: type) -> tuple[str, ...]:
    fields: Sequence[dataclasses.Field[object]] = dataclasses.fields(values)
    return tuple(field.name for field in fields)


if __name__ == "__main__":
    click.echo(reference(), nl=False)
