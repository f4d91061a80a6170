"""Where output goes: data to stdout, everything said to the user to stderr."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from datetime import datetime

import click

from ostinatod.cli.text import strip_controls
from ostinatod.errors import OstinatoError


def colour_wanted() -> bool | None:
    """False where the user has asked for none; None leaves it to whether the stream is a terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def say(text: str) -> None:
    """Tell the user something on stderr."""
    click.echo(strip_controls(text), err=True)


def print_text(text: str) -> None:
    """Print data for people on stdout."""
    click.echo(strip_controls(text))


def print_json(value: object) -> None:
    """Print data for programs on stdout: dataclasses, or anything that JSON can hold."""
    click.echo(json.dumps(value, indent=2, default=_plain))


def report(error: OstinatoError, *, debug: bool = False) -> None:
    """Say what went wrong, why, and which command comes next."""
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True)
    label = click.style("Error:", fg="red", bold=True)
    click.echo(f"{label} {strip_controls(error.message)}", err=True, color=colour_wanted())
    if error.hint:
        say(error.hint)


def stdout_is_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout.isatty()


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)
