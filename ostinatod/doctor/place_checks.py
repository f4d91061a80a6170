"""Checks of the daemon's own files: the runtime directory, what a killed daemon left in it, and the database."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from ostinatod import locations
from ostinatod.doctor.findings import Finding, ok, problem, skipped, warning

_CHECKED_WHOLE_BYTES = 200_000_000
"""Reading more than that takes longer than somebody who looks for a fault wants to wait."""


def check_runtime_dir(directory: Path, user: int) -> Finding:
    """Sockets find a place: the path is short enough, and the directory is this user's alone."""
    length = len(os.fsencode(directory))
    if length > locations.RUNTIME_DIR_BYTES:
        return problem(
            "runtime-dir",
            f"expected a path of at most {locations.RUNTIME_DIR_BYTES} bytes for sockets, found {length}: {directory}",
            "Choose a shorter place: export OSTINATO_HOME=~/.ostinato",
        )
    try:
        status = directory.stat()
    except FileNotFoundError:
        return skipped("runtime-dir", f"{directory} is made when the daemon starts")
    except OSError as error:
        return problem("runtime-dir", f"{directory} cannot be read: {error}", f"Mend it: ls -ld {directory.parent}")
    if not stat.S_ISDIR(status.st_mode):
        return problem("runtime-dir", f"expected a directory, found a file: {directory}", f"Remove it: rm {directory}")
    if status.st_uid != user:
        return problem(
            "runtime-dir",
            f"{directory} belongs to user {status.st_uid}, not to {user}",
            f"Remove it as that user: rm -r {directory}",
        )
    if mode := status.st_mode & 0o077:
        return problem(
            "runtime-dir",
            f"expected mode 0700, found {status.st_mode & 0o777:04o}: others may reach the engines ({mode:03o})",
            f"Close it: chmod 700 {directory}",
        )
    return ok("runtime-dir", f"{directory}")


def check_leftovers(directory: Path, pid_file: Path, is_alive: Callable[[int], bool]) -> Finding:
    """No socket and no pid file of a daemon that no longer runs."""
    dead = [path.name for path in sorted(directory.glob("engine-*-*.sock")) if not _is_owner_alive(path, is_alive)]
    try:
        pid = pid_file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        pid = ""
    if pid and not (pid.isdecimal() and is_alive(int(pid))):
        dead.insert(0, pid_file.name)
    if dead:
        names = ", ".join(dead[:4]) + (f" and {len(dead) - 4} more" if len(dead) > 4 else "")
        return warning(
            "leftovers",
            f"a daemon ended without cleaning up: {names} in {directory}",
            "See why: ostinato logs daemon. The next `ostinato serve` removes them",
        )
    return ok("leftovers", "none")


def check_database(check: str, file: Path, consequence: str, table: str | None = None) -> Finding:
    """A database can be opened and is whole; one of hundreds of megabytes is only opened.

    consequence  what is lost with it, in words
    table        one that it has if it is ours
    """
    if not file.exists():
        return skipped(check, f"{file} is made when it is first needed")
    aside = f"Stop the daemon and put it aside ({consequence}): mv {file} {file}.damaged"
    size = file.stat().st_size
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as database:
            names = {row[0] for row in database.execute("select name from sqlite_master where type = 'table'")}
            whole = size > _CHECKED_WHOLE_BYTES or database.execute("pragma quick_check(1)").fetchone()[0] == "ok"
    except sqlite3.OperationalError as error:
        return problem(check, f"{file} cannot be read: {error}", f"See who holds it and its permissions: ls -l {file}*")
    except sqlite3.DatabaseError as error:
        return problem(check, f"{file} is damaged: {error}", aside)
    if not whole:
        return problem(check, f"{file} is damaged", aside)
    if table and names and table not in names:
        return problem(check, f"{file} is a database of something else", aside)
    return ok(check, f"{file}, {size / 1e6:.1f} MB")


def _is_owner_alive(engine_socket: Path, is_alive: Callable[[int], bool]) -> bool:
    pid = engine_socket.name.split("-")[1]
    return not pid.isdecimal() or is_alive(int(pid))
