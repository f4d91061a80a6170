"""Checks of the daemon: its settings, its port, whether it answers, and whether it is of this version."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from ostinatod.client import DaemonClient
from ostinatod.config import Settings
from ostinatod.doctor.findings import Finding, ok, problem, skipped
from ostinatod.errors import ConfigError, DaemonUnreachable, OstinatoError
from ostinatod.listeners import Listener

_PATIENCE_S = 2.0
_RESTART = "Restart it: ostinato service restart, or: ostinato stop --daemon, then: ostinato serve"


def read_settings(load: Callable[[], Settings]) -> tuple[Settings, Finding]:
    """The settings in force, the defaults where they cannot be read, and what there is to say of them."""
    try:
        settings = load()
    except ConfigError as error:
        return Settings(), problem("settings", error.message, error.hint or "All settings: docs/settings.md")
    changed = sum(getattr(settings, name) != getattr(Settings(), name) for name in Settings.__dataclass_fields__)
    return settings, ok("settings", f"{changed} differ from their defaults")


def check_port(settings: Settings, find_listener: Callable[[int], Listener | None], *, daemon_answers: bool) -> Finding:
    """The daemon's port is free, or the daemon has it."""
    if daemon_answers:
        return ok("port", f"{settings.port} is the daemon's")
    if fault := _cannot_listen(settings.host, settings.port):
        owner = find_listener(settings.port)
        found = f"port {settings.port} is taken by {owner}" if owner else f"port {settings.port}: {fault}"
        return problem(
            "port", found, f"End that program, or take another port: export OSTINATO_PORT={settings.port + 1}"
        )
    return ok("port", f"{settings.port} is free")


def check_daemon(client: DaemonClient, version: str) -> tuple[Finding, bool]:
    """The daemon, if there is one, answers and is of the client's version; and whether it answers at all."""
    try:
        if not client.is_up(timeout_s=_PATIENCE_S):
            return skipped("daemon", f"none answers at {client.base_url}; `ostinato run` starts one"), False
        found = client.version().ostinato
    except DaemonUnreachable as error:
        return problem("daemon", error.message, error.hint or _RESTART), False
    except OstinatoError as error:
        return problem("daemon", error.message, error.hint or _RESTART), True
    if found != version:
        return problem("daemon", f"expected version {version} at {client.base_url}, found {found}", _RESTART), True
    return ok("daemon", f"version {found} at {client.base_url}"), True


def _cannot_listen(host: str, port: int) -> str | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None
