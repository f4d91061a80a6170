"""Model names for the shell's completion, asked of the daemon; nothing is offered if it does not answer quickly."""

from __future__ import annotations

import click

from ostinatod.cli.context import Cli
from ostinatod.errors import OstinatoError

_PATIENCE_S = 0.5


def complete_model(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Registered names that begin with what is typed."""
    return _names(context, incomplete, running=False)


def complete_running(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of loaded models that begin with what is typed."""
    return _names(context, incomplete, running=True)


def _names(context: click.Context, incomplete: str, *, running: bool) -> list[str]:
    try:
        with Cli(host=context.find_root().params.get("host")).client() as client:
            if not client.is_up(timeout_s=_PATIENCE_S):
                return []
            names = [model.name for model in (client.running() if running else client.models())]
    except OstinatoError:
        return []
    return [name for name in names if name.startswith(incomplete)]
