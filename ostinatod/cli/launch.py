"""Starts the daemon in the background, for commands that need one and find none."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ostinatod import locations
from ostinatod.cli.output import say
from ostinatod.config import Settings
from ostinatod.errors import ConfigError, DaemonUnreachable

if TYPE_CHECKING:
    from ostinatod.client import DaemonClient

START_TIMEOUT_S = 30.0
"""Importing the server from a cold disk takes seconds; it loads no model before it answers."""

_POLL_S = 0.1
_RIVAL_WAIT_S = 3.0
"""When two commands start a daemon at once, one of the two ends at once and the other needs this long to answer."""

_TAIL_LINES = 5
_PATH_VARIABLES = ("OSTINATO_HOME", "OSTINATO_ENGINE_CACHE", "HF_HOME", "HF_HUB_CACHE")


def ensure_daemon(
    client: DaemonClient, settings: Settings, command: Sequence[str] | None = None
) -> subprocess.Popen[bytes] | None:
    """Return when a daemon answers, starting one on this machine if none does; the process if one was started.

    `command` stands in for `ostinato serve`. Raises DaemonUnreachable, with the end of the daemon's log, if it cannot.
    """
    if client.is_up():
        return None
    if not _is_loopback(settings.host):
        raise DaemonUnreachable(
            f"no daemon answers at {settings.base_url}", hint="Start it on that machine: ostinato serve"
        )
    log = locations.log_dir() / "daemon.log"
    say(f"No daemon is running; starting one. Its log: {log}")
    process = _spawn(command or _serve_command(settings), log)
    _await(client, process, log)
    return process


def _serve_command(settings: Settings) -> tuple[str, ...]:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return (sys.executable, "-m", "ostinatod", "--host", f"{host}:{settings.port}", "serve")


def _spawn(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    # The daemon stands in its own directory, so that it keeps no other one busy and imports no code from where the
    # command happened to be typed; relative paths in its environment are made absolute for that.
    environment = dict(os.environ)
    for name in _PATH_VARIABLES:
        if environment.get(name):
            environment[name] = os.path.abspath(os.path.expanduser(environment[name]))
    with _open_log(log) as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env=environment,
            start_new_session=True,
        )


def _open_log(log: Path) -> BinaryIO:
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open(log, "ab", opener=_private)
    except OSError as error:
        raise ConfigError(
            f"cannot write the daemon's log: {error}", hint="Choose another place: OSTINATO_HOME"
        ) from error


def _await(client: DaemonClient, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    ended = False
    while time.monotonic() < deadline:
        if client.is_up(timeout_s=1.0):
            return
        if not ended and process.poll() is not None:
            ended = True
            deadline = min(deadline, time.monotonic() + _RIVAL_WAIT_S)
        time.sleep(_POLL_S)
    why = f"it ended with code {process.returncode}" if ended else f"it did not answer within {START_TIMEOUT_S:.0f} s"
    raise DaemonUnreachable(
        "\n".join([f"the daemon could not be started: {why}", *(f"  {line}" for line in _tail(log))]),
        hint=f"See its log: {log}",
    )


def _tail(log: Path) -> list[str]:
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        return file.read().decode("utf-8", errors="replace").splitlines()[-_TAIL_LINES:]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _is_loopback(host: str) -> bool:
    if host in ("localhost", "0.0.0.0", "::"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
