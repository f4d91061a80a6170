"""`ostinato keys`: make, list and remove the API keys that the daemon on this machine accepts."""

from __future__ import annotations

import re

import click

from ostinatod import locations
from ostinatod.cli.context import json_option
from ostinatod.cli.groups import SuggestingGroup
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.cli.text import table
from ostinatod.errors import ConfigError
from ostinatod.keys import KeyFile

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")


@click.group(cls=SuggestingGroup)
def keys() -> None:
    """Make, list or remove API keys.

    While any key exists, the daemon answers nobody without one; it needs at least one to listen beyond this machine.
    Commands on the daemon's own machine need none.
    """


@keys.command("add")
@click.argument("name")
@json_option
def add_key(name: str, as_json: bool) -> None:
    """Make a key called NAME and print it, once: only its hash is kept.

    Clients send it as `Authorization: Bearer KEY` or `x-api-key: KEY`; other machines' `ostinato` takes it from
    OSTINATO_API_KEY.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"expected a name of letters, digits, '_', '.', '@' and '-', found {name!r}")
    key, secret = _file().add(name)
    if as_json:
        print_json({"id": key.id, "name": key.name, "created_at": key.created_at, "key": secret})
        return
    print_text(secret)
    say("Keep it now: it cannot be shown again. From now on the daemon answers nobody without a key.")


@keys.command("list")
@json_option
def list_keys(as_json: bool) -> None:
    """List the keys; never the keys themselves."""
    kept = _file().read()
    if as_json:
        print_json([{"id": key.id, "name": key.name, "created_at": key.created_at} for key in kept])
        return
    print_text(table(("NAME", "ID", "CREATED"), [(key.name, key.id, key.created_at) for key in kept]))
    if not kept:
        say("There are no keys: the daemon asks for none. Make one: ostinato keys add NAME")


@keys.command("rm")
@click.argument("name")
@json_option
def remove_key(name: str, as_json: bool) -> None:
    """Remove the key called NAME, or of that id.

    It is refused from the next request on.
    """
    file = _file()
    removed = file.remove(name)
    say(f"removed {removed.name}")
    if as_json:
        print_json({"id": removed.id, "name": removed.name})
    if not file.read():
        say("No key is left: the daemon asks for none, and will not start beyond loopback.")


def _file() -> KeyFile:
    return KeyFile(locations.keys_file())
