"""Model names for the shell's completion, asked of the daemon; nothing is offered if it does not answer quickly."""

from __future__ import annotations

import click

from ostinatod.cli.context import Cli
from ostinatod.cli.text import one_line

_PATIENCE_S = 0.5
_LOG_SOURCES = ("daemon", "output", "build")


def complete_model(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Registered names that begin with what is typed."""
    return _names(context, incomplete, running=False)


def complete_running(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of loaded models that begin with what is typed."""
    return _names(context, incomplete, running=True)


def complete_log_source(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """What `ostinato logs` takes: its own words, and registered models."""
    words = [word for word in _LOG_SOURCES if word.startswith(incomplete)]
    return words + _names(context, incomplete, running=False)


def _names(context: click.Context, incomplete: str, *, running: bool) -> list[str]:
    try:
        with Cli(host=context.find_root().params.get("host")).client() as client:
            if not client.is_up(timeout_s=_PATIENCE_S):
                return []
            names = [model.name for model in (client.running() if running else client.models())]
    except Exception:
        # Whatever goes wrong, the line that somebody is typing must not be filled with it.
        return []
    return [name for name in map(one_line, names) if name.lower().startswith(incomplete.lower())]
