"""Commands about the daemon itself: serve, status, version."""

from __future__ import annotations

from datetime import datetime, timezone

import click

from ostinatod import __version__
from ostinatod.cli.context import Cli, json_option, pass_cli
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.errors import DaemonUnreachable


@click.command()
@pass_cli
@click.pass_context
def serve(context: click.Context, cli: Cli) -> None:
    """Run the daemon in the foreground, until Ctrl-C."""
    settings = cli.settings()
    from ostinatod.serve import serve as run_daemon

    context.exit(run_daemon(settings))


@click.command()
@json_option
@pass_cli
def status(cli: Cli, as_json: bool) -> None:
    """Show what the daemon is doing.

    For people that is what they may want to act on; --json is all that the daemon tells of itself.
    """
    with cli.client() as client:
        told = client.status()
    if as_json:
        print_json(told)
        return
    from ostinatod.cli.status_text import status_text

    print_text(status_text(told, cli.settings().base_url, datetime.now(timezone.utc)))


@click.command()
@json_option
@pass_cli
def version(cli: Cli, as_json: bool) -> None:
    """Show the versions of this client and of the daemon."""
    daemon = None
    with cli.client() as client:
        try:
            daemon = client.version()
        except DaemonUnreachable as error:
            say(error.message)
    if as_json:
        print_json(
            {
                "client": __version__,
                "daemon": daemon.ostinato if daemon else None,
                "api": daemon.api if daemon else None,
            }
        )
        return
    print_text(f"ostinato {__version__}")
    if daemon is not None:
        print_text(f"daemon   {daemon.ostinato} (speaks API {daemon.api})")
        if daemon.ostinato != __version__:
            say("Client and daemon differ. Restart the daemon: ostinato stop --daemon, then ostinato serve")
