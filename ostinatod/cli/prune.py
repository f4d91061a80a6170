"""The command that deletes what no model needs: prune."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ostinatod.cli.context import Cli, json_option, pass_cli
from ostinatod.cli.models import short_id
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.cli.text import counted, human_bytes, table

if TYPE_CHECKING:
    from ostinatod.client_values import Pruned, PrunedEntry

_KIND_WORDS = {
    "unfinished": "unfinished download",
    "superseded": "older version",
    "unused": "download without a model",
    "prompts": "saved prompts",
    "residency": "residency file",
}
_OF_A_FINGERPRINT = ("prompts", "residency")
"""Kinds whose model has no name any more."""


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_cli
def prune(cli: Cli, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete what no model needs.

    That is unfinished downloads, older versions of models and other downloads of Ostinato that no registered name
    uses, and saved prompts and residency files of models that are gone. Downloads in progress stay, and files of other
    programs. What was learnt and logged stays too: a model that is pulled again goes on with it.
    """
    with cli.client() as client:
        told = client.prune(dry_run=True)
        if told.entries and not as_json:
            print_text(leftovers_table(told))
        if told.entries and not dry_run:
            if not yes:
                click.confirm(f"Delete {_amount(told)}?", abort=True, err=True)
            told = client.prune([entry.path for entry in told.entries])
    if as_json:
        print_json(told)
    else:
        _say_outcome(told)


def leftovers_table(told: Pruned) -> str:
    """What may go, one line for each."""
    return table(("WHAT", "MODEL", "SIZE", "PATH"), map(_row, told.entries))


def _row(entry: PrunedEntry) -> tuple[str, str, str, str]:
    model = short_id(entry.model) if entry.kind in _OF_A_FINGERPRINT else entry.model
    return _KIND_WORDS.get(entry.kind, entry.kind), model, human_bytes(entry.size_bytes), entry.path


def _say_outcome(told: Pruned) -> None:
    if told.deleted:
        say(f"deleted {_amount(told)}")
    elif told.entries:
        say(f"{_amount(told)} can be deleted: ostinato prune")
    else:
        say("There is nothing to delete.")
    if told.in_progress:
        say(f"Left alone while being pulled: {', '.join(told.in_progress)}")


def _amount(told: Pruned) -> str:
    return f"{counted(len(told.entries), 'item')}, {human_bytes(told.total_bytes)}"
