"""Commands about models in memory: ps, load, stop."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from ostinatod.cli.completion import complete_model, complete_running
from ostinatod.cli.context import Cli, json_option, pass_cli
from ostinatod.cli.models import short_id
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.cli.progress import share_display
from ostinatod.cli.text import human_bytes, table, until
from ostinatod.config import parse_duration_s

if TYPE_CHECKING:
    from ostinatod.client import DaemonClient
    from ostinatod.client_values import RunningModel


@click.command()
@click.argument("prefix", default="")
@json_option
@pass_cli
def ps(cli: Cli, prefix: str, as_json: bool) -> None:
    """List the models in memory.

    With PREFIX, only those whose name begins with it.
    """
    with cli.client() as client:
        models = [model for model in client.running() if model.name.lower().startswith(prefix.lower())]
    if as_json:
        print_json(models)
        return
    now = datetime.now(timezone.utc)
    rows = (
        (
            model.name,
            short_id(model.digest),
            human_bytes(model.size_bytes),
            model.placement or model.backend.upper() or "-",
            str(model.context_tokens) if model.context_tokens else "-",
            _until(model, now),
        )
        for model in models
    )
    print_text(table(("NAME", "ID", "SIZE", "PLACEMENT", "CONTEXT", "UNTIL"), rows))
    if not models:
        say(f"No model in memory{f' begins with {prefix}' if prefix else ''}. Load one: ostinato load MODEL")
    for model in models:
        if model.gpu_experts is not None and model.gpu_experts.refused:
            say(f"{model.name} has no expert pool: {model.gpu_experts.refused}")
            say(model.gpu_experts.hint or "")


@click.command()
@click.argument("model", shell_complete=complete_model)
@click.option("--keepalive", metavar="TIME", help="How long to stay in memory unused: 90s, 5m, 1h30m, forever.")
@click.option("--estimate-only", is_flag=True, help="Only tell how much memory it takes, by use; needs no daemon.")
@json_option
@pass_cli
def load(cli: Cli, model: str, keepalive: str | None, estimate_only: bool, as_json: bool) -> None:
    """Load a model into memory before the first request.

    With --estimate-only, MODEL may also be a .gguf file or its directory, and nothing is loaded.
    """
    if estimate_only:
        from ostinatod.cli.estimate import tell_estimate

        tell_estimate(cli.settings(), model, as_json=as_json)
        return
    keep_alive_s = None if keepalive is None else parse_duration_s(keepalive)
    started = time.monotonic()
    with cli.client() as client:
        show_load(client, model, keep_alive_s)
    if as_json:
        print_json({"model": model, "state": "ready", "load_ms": round((time.monotonic() - started) * 1000, 1)})
    else:
        say(f"{model} is ready")


def show_load(client: DaemonClient, model: str, keep_alive_s: float | None = None) -> None:
    """Load `model`, telling how far it is; silent for one that is loaded already."""
    with closing(client.load(model, keep_alive_s)) as steps:
        step = next(steps, None)
        while step is not None and (step.status == "ready" or step.progress >= 1):
            step = next(steps, None)
        if step is None:
            return
        with share_display() as display:
            while step is not None:
                share = 1.0 if step.status == "ready" else step.progress
                display.update(f"loading {model}", round(share * 100), 100)
                step = next(steps, None)


@click.command()
@click.argument("models", nargs=-1, metavar="MODEL...", shell_complete=complete_running)
@click.option("--force", is_flag=True, help="Break off answers in progress instead of waiting for their end.")
@click.option("--daemon", is_flag=True, help="Stop the daemon itself, with every model.")
@json_option
@pass_cli
def stop(cli: Cli, models: tuple[str, ...], force: bool, daemon: bool, as_json: bool) -> None:
    """Take models out of memory, or stop the daemon."""
    if daemon == bool(models):
        raise click.UsageError("Expected either models to stop or --daemon.")
    with cli.client() as client:
        for model in models:
            client.unload(model, force=force)
            say(f"stopped {model}")
        if daemon:
            client.shutdown()
            say("the daemon is stopping")
    if as_json:
        print_json({"stopped": models, "daemon": daemon})


def _until(model: RunningModel, now: datetime) -> str:
    if model.state == "loading":
        return f"loading {round(model.progress * 100)} %"
    return "stopping" if model.state == "stopping" else until(model.expires_at, now)
