"""`ostinato service`: the daemon in the background, started at log-in by the user's own service manager."""

from __future__ import annotations

import getpass
import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ostinatod import locations
from ostinatod.cli.context import Cli, json_option, pass_cli
from ostinatod.cli.groups import SuggestingGroup
from ostinatod.cli.output import print_json, print_text, say
from ostinatod.cli.text import outline
from ostinatod.errors import ConfigError, DaemonUnreachable, ServiceError

if TYPE_CHECKING:
    from ostinatod.service.host import ServiceState

_START_TIMEOUT_S = 30.0
_POLL_S = 0.2


@click.group(cls=SuggestingGroup)
def service() -> None:
    """Run the daemon in the background from log-in on."""


@service.command()
@json_option
@pass_cli
def install(cli: Cli, as_json: bool) -> None:
    """Install and start the service, or bring it up to date.

    Writes one file in your home: a systemd user unit on Linux, a launchd agent on macOS. Settings that this shell has
    in OSTINATO_* variables are written into it; tokens and keys are not.
    """
    from ostinatod.service.host import find_host
    from ostinatod.service.plan import plan_service

    host = find_host(os.environ)
    settings = cli.settings()
    with cli.client() as client:
        if client.is_up() and not host.state().active:
            raise ConfigError(
                f"a daemon runs at {settings.base_url} already, and is not the service's",
                hint="Stop it first: ostinato stop --daemon",
            )
        changed = host.install(plan_service(os.environ, locations.log_dir(), host=cli.host))
        answers = _await(client.is_up)
    state = host.state()
    if as_json:
        print_json({**_facts(state), "changed": changed, "answers": answers})
    else:
        say(f"{'installed' if changed else 'already installed:'} {host.file}")
        _hint_at_linger(state)
    if not answers:
        raise DaemonUnreachable(
            f"the service was started, and no daemon answers at {settings.base_url} after {_START_TIMEOUT_S:.0f} s",
            hint="See why: ostinato logs daemon, or ostinato doctor",
        )
    if not as_json:
        say(f"The daemon answers at {settings.base_url}")


@service.command()
@json_option
def uninstall(as_json: bool) -> None:
    """Stop the service and remove what installing it made. Models, settings and logs stay."""
    from ostinatod.service.host import find_host

    removed = find_host(os.environ).uninstall()
    if as_json:
        print_json({"removed": removed})
    elif removed:
        for path in removed:
            say(f"removed {path}")
    else:
        say("The service is not installed.")


@service.command("status")
@json_option
def service_status(as_json: bool) -> None:
    """Show whether the service is installed and runs."""
    from ostinatod.service.host import ServiceState, find_host

    try:
        state = find_host(os.environ).state()
    except ServiceError as error:
        state = ServiceState(None, None, False, False, False, error.message)
    if as_json:
        print_json(_facts(state))
    else:
        print_text(outline(_facts(state)))
        _hint_at_linger(state)


@service.command()
@json_option
@pass_cli
def restart(cli: Cli, as_json: bool) -> None:
    """End the daemon in order and start it again.

    Answers in progress end first.
    """
    from ostinatod.service.host import find_host

    host = find_host(os.environ)
    host.restart()
    with cli.client() as client:
        answers = _await(client.is_up)
    if as_json:
        print_json({**_facts(host.state()), "answers": answers})
    if not answers:
        raise DaemonUnreachable(
            f"no daemon answers {_START_TIMEOUT_S:.0f} s after the restart", hint="See why: ostinato logs daemon"
        )
    if not as_json:
        say("restarted")


def _await(is_up: Any) -> bool:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not is_up():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _facts(state: ServiceState) -> dict[str, Any]:
    return {**asdict(state), "file": str(state.file) if state.file else None}


def _hint_at_linger(state: ServiceState) -> None:
    if state.kind == "systemd" and state.installed and state.survives_logout is False:
        say(f"It ends when you log out. To keep it: loginctl enable-linger {getpass.getuser()}")
