"""What of this installation reaches into the user's session: the background service, completion, a running daemon.

`python -m ostinatod.installer.integration` ends and removes it all, as `python3 installer uninstall` does first.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from ostinatod import locations
from ostinatod.errors import OstinatoError
from ostinatod.service.host import ServiceHost, find_host
from ostinatod.service.plan import STOP_TIMEOUT_S
from ostinatod.shell_files import installed_scripts, remove_scripts


def integration_paths() -> list[Path]:
    """Files in the user's home that belong to this installation."""
    host = own_service()
    return [*([host.file] if host else []), *installed_scripts()]


def own_service() -> ServiceHost | None:
    """The service, if it is installed and starts the program of this environment; another checkout's is not ours."""
    try:
        host = find_host(os.environ)
    except OstinatoError:
        return None
    return host if host.starts(Path(sys.prefix) / "bin" / "ostinato") else None


def running_daemon() -> psutil.Process | None:
    """The daemon of this environment, if it runs."""
    try:
        process = psutil.Process(int(locations.pid_file().read_text(encoding="ascii")))
        is_ours = any(word.startswith(f"{sys.prefix}{os.sep}") for word in process.cmdline())
    except (OSError, ValueError, psutil.Error):
        return None
    return process if is_ours else None


def restart_advice(changed: Iterable[Path]) -> str | None:
    """What to do about a daemon that was started before the newest of the files `changed`; None if there is none.

    Editable installations change under a running daemon, which keeps the code and the engine that it began with.
    """
    process = running_daemon()
    if process is None:
        return None
    newest = max((path.stat().st_mtime for path in changed if path.is_file()), default=0.0)
    try:
        if process.create_time() >= newest:
            return None
    except psutil.Error:
        return None
    host = own_service()
    command = "ostinato service restart" if host and host.state().active else "ostinato stop --daemon"
    return f"The daemon that runs (pid {process.pid}) is older than this version. Restart it: {command}"


def withdraw() -> list[str]:
    """End the service and the daemon in order, and remove their files and the completion scripts; what was done."""
    done: list[str] = []
    host = own_service()
    if host is not None:
        try:
            done += [f"removed {path}" for path in host.uninstall()]
        except OstinatoError as error:
            done.append(f"the service stays: {error.message}")
    process = running_daemon()
    if process is not None:
        with contextlib.suppress(psutil.Error):
            process.terminate()
            process.wait(STOP_TIMEOUT_S)
            done.append(f"stopped the daemon (pid {process.pid})")
    return done + [f"removed {path}" for path in remove_scripts()]


if __name__ == "__main__":
    for line in withdraw():
        print(line)
