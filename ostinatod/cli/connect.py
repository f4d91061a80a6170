"""`ostinato launch`: start an agent or editor so that it works with the daemon."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ostinatod import locations
from ostinatod.cli.completion import complete_model
from ostinatod.cli.connect_clients import Client, Connection, Target, clients
from ostinatod.cli.connect_files import apply, undo
from ostinatod.cli.context import Cli, json_option, pass_cli
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.config import client_api_key
from ostinatod.errors import ConfigError, ModelNotFound
from ostinatod.keys import KeyFile, key_for

if TYPE_CHECKING:
    from ostinatod.client import DaemonClient

_NAMES = tuple(clients())


@click.command()
@click.option("--model", shell_complete=complete_model, help="Model to use, if not the one in memory or the only one.")
@click.option("--print", "only_print", is_flag=True, help="Show the settings; write and start nothing.")
@click.option("--undo", "take_back", is_flag=True, help="Take back what an earlier launch changed in its files.")
@json_option
@click.argument("client", type=click.Choice(_NAMES), metavar="CLIENT")
@click.argument("arguments", nargs=-1)
@pass_cli
def launch(
    cli: Cli,
    model: str | None,
    only_print: bool,
    take_back: bool,
    as_json: bool,
    client: str,
    arguments: tuple[str, ...],
) -> None:
    """Start CLIENT, an agent or editor, with this daemon's models.

    CLIENT is claude, codex, opencode, pi, cline, continue, aider, llm, zed, roo or copilot; ARGUMENTS behind -- go to
    it. Variables and arguments are used where a client knows them, and end with it; for others a file of theirs is
    changed: every other value in it is kept, and --undo takes the change back.
    """
    chosen = clients()[client]
    if take_back:
        _take_back(chosen, _target(cli, "", 0))
        return
    from ostinatod.cli.launch import ensure_daemon

    settings = cli.settings()
    with cli.client() as daemon:
        ensure_daemon(daemon, settings)
        name, context_tokens = _model(daemon, model)
    target = _target(cli, name, context_tokens)
    connection = chosen.connect(_with_key(target, chosen, only_print=only_print or as_json))
    if as_json:
        print_json(_described(connection))
    elif only_print or connection.by_hand or chosen.program is None:
        print_text(shell_lines(chosen, connection, arguments))
    else:
        _start(chosen, connection, arguments)


def shell_lines(client: Client, connection: Connection, arguments: Sequence[str] = ()) -> str:
    """The settings as a shell, or a person, can use them."""
    if connection.by_hand:
        return connection.by_hand
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(connection.environment.items())]
    for change in connection.files:
        lines += [f"# in {change.path}:", *(f"#   {line}" for line in _json(change.values).splitlines())]
    lines.append(shlex.join([client.program or client.name, *connection.arguments, *arguments]))
    return "\n".join(lines)


def _start(client: Client, connection: Connection, arguments: Sequence[str]) -> None:
    assert client.program is not None
    program = shutil.which(client.program)
    for change in connection.files:
        if apply(change) and not change.own:
            say(f"Changed {change.path}. Take it back: ostinato launch --undo {client.name}")
    if program is None:
        raise ConfigError(
            f"{client.title} is not installed: there is no program {client.program!r} on the PATH",
            hint=f"Install it: {client.package}. Its settings: ostinato launch --print {client.name}",
        )
    environment = {**os.environ, **connection.environment}
    os.execve(program, [client.program, *connection.arguments, *arguments], environment)


def _take_back(client: Client, target: Target) -> None:
    # Only places and keys matter for that, so no daemon is asked.
    files = client.connect(target).files
    undone = [change for change in files if undo(change)]
    for change in undone:
        say(f"Took back the change of {change.path}.")
    if not undone:
        say(f"Nothing of ours is in the files of {client.title}.")


def _target(cli: Cli, model: str, context_tokens: int) -> Target:
    return Target(
        base_url=cli.settings().base_url,
        model=model,
        context_tokens=context_tokens,
        home=Path.home(),
        own_files=locations.data_dir() / "clients",
    )


def _with_key(target: Target, client: Client, *, only_print: bool) -> Target:
    """The key to send. The local one ends with the daemon, so it is only handed to a process, never shown or stored."""
    if own := client_api_key():
        return replace(target, api_key=own)
    local = key_for(target.base_url)
    if local is None or not KeyFile(locations.keys_file()).read():
        return target
    if only_print or client.connect(target).files or client.program is None:
        raise ConfigError(
            f"the daemon asks for an API key, and none is set for {client.title}",
            hint=f"Make one and set it: export OSTINATO_API_KEY=$(ostinato keys add {client.name})",
        )
    return replace(target, api_key=local)


def _model(daemon: DaemonClient, name: str | None) -> tuple[str, int]:
    """Name and context of the wanted model; without a name of the loaded one, or the one that changed last."""
    if name is not None:
        shown = daemon.show(name)
        return shown.name, shown.context_tokens
    models = daemon.models()
    running = {model.name for model in daemon.running()}
    candidates = [model for model in models if model.name in running] or list(models)
    if not candidates:
        raise ModelNotFound("there is no model on this machine", hint="Fetch one: ostinato pull ORG/REPO")
    if len(candidates) > 1:
        say(f"Using {candidates[0].name}; choose another with --model: {', '.join(m.name for m in candidates[1:])}")
    return candidates[0].name, candidates[0].context_tokens


def _described(connection: Connection) -> Mapping[str, object]:
    return {
        "environment": dict(connection.environment),
        "arguments": list(connection.arguments),
        "files": [{"path": str(change.path), "values": change.values} for change in connection.files],
        "by_hand": connection.by_hand,
    }


def _json(values: Mapping[str, object]) -> str:
    return json.dumps(values, indent=2)
