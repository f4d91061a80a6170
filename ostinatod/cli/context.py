"""What every command is given: the global options, and from them the settings and a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ostinatod.config import Settings, load_settings, parse_host

if TYPE_CHECKING:
    from ostinatod.client import DaemonClient


@dataclass(frozen=True, slots=True)
class Cli:
    """The global options of this call."""

    host: str | None = None
    debug: bool = False

    def settings(self) -> Settings:
        """The settings in force. Raises ConfigError."""
        if self.host is None:
            return load_settings()
        host, port = parse_host(self.host)
        return load_settings(host=host, port=port)

    def client(self) -> DaemonClient:
        """A client of the daemon that the settings name."""
        from ostinatod.client import DaemonClient
        from ostinatod.keys import key_for

        base_url = self.settings().base_url
        return DaemonClient(base_url, api_key=key_for(base_url))


pass_cli = click.make_pass_decorator(Cli)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
