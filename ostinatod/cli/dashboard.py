"""`ostinato tui`: the terminal dashboard, a process of its own."""

from __future__ import annotations

import os
import sys

import click

from ostinatod.cli.context import Cli, pass_cli
from ostinatod.errors import ConfigError

_THEMES = ("dark", "light", "mono", "ascii")
_PRESETS = ("overview", "experts", "requests", "learning", "logs")


@click.command()
@click.argument("preset", type=click.Choice(_PRESETS), default="overview")
@click.option("--theme", type=click.Choice(_THEMES), help="Colours and glyphs; NO_COLOR means mono.")
@click.option(
    "--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, help="Seconds between two readings."
)
@pass_cli
def tui(cli: Cli, preset: str, theme: str | None, interval: float) -> None:
    """Watch models, experts, requests, learning and logs live.

    Starts with PRESET. Runs beside the daemon and needs none: it says how to start one and waits for it. Press ? for
    help, q to leave.
    """
    # It draws on stderr, so that stdout stays free for data.
    if not (sys.stdin.isatty() and sys.stderr.isatty()) or os.environ.get("TERM") == "dumb":
        raise ConfigError(
            "the dashboard needs a terminal, which this is not", hint="See the same as text: ostinato status"
        )
    address = cli.settings().base_url
    no_colour = bool(os.environ.get("NO_COLOR"))

    from ostinatod.client_dashboard import DashboardClient
    from ostinatod.keys import key_for
    from ostinatod.tui.app import DashboardApp
    from ostinatod.tui.host import HostMeter

    app = DashboardApp(
        lambda: DashboardClient(address, api_key=key_for(address)),
        theme=theme or _default_theme(no_colour=no_colour),
        preset=preset,
        interval_s=interval,
        no_colour=no_colour,
        measure=HostMeter().measure,
    )
    app.run()


def _default_theme(*, no_colour: bool) -> str:
    encoding = (sys.stderr.encoding or "").lower().replace("-", "")
    if encoding not in ("utf8", "utf16"):
        return "ascii"
    return "mono" if no_colour else "dark"
