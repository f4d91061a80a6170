"""Which process listens on a TCP port of this machine."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

_COMMAND_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class Listener:
    """A process that listens."""

    pid: int
    name: str
    command: str
    """Its command line, cut after 120 characters."""

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}, {self.command})"


def listener_on(port: int) -> Listener | None:
    """Who listens on `port`; None if nobody does, or if it is not this user's to know."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    for connection in connections:
        listens = connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN
        if listens and connection.pid:
            try:
                process = psutil.Process(connection.pid)
                command = " ".join(process.cmdline())[:_COMMAND_CHARACTERS]
                return Listener(process.pid, process.name(), command)
            except psutil.Error:
                continue
    return None
