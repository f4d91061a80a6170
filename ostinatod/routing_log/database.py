"""Opening the routing log's SQLite file, and saying in plain words why it could not be."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlite_utils import Database

from ostinatod.errors import RoutingLogUnavailable
from ostinatod.routing_log.schema import require_known_schema, routing_log_migrations
from ostinatod.transactions import enable_wal, immediate

WRITE_BUSY_S = 5.0
READ_BUSY_S = 5.0

_BEGIN_ANEW = "Begin a new log: ostinato forget --all"
_REASONS = (
    ("disk is full", "the disk is full", "Free some space; logging resumes by itself"),
    ("disk i/o error", "the disk cannot be written", "Free some space or check the disk; logging resumes by itself"),
    ("locked", "another program holds its database locked", "Close that program; logging resumes by itself"),
    ("readonly", "its database may not be written", "Check the permissions of {file}"),
    ("unable to open", "its database cannot be opened", "Check the permissions of {file}"),
    ("malformed", "its database is damaged", _BEGIN_ANEW),
    ("not a database", "its database is damaged", _BEGIN_ANEW),
    ("damaged", "its database is damaged", _BEGIN_ANEW),
)


def open_for_writing(file: Path, *, busy_s: float = WRITE_BUSY_S) -> Database:
    """The database at `file`, created or brought up to date, in WAL mode.

    Raises RoutingLogUnavailable for one that a newer version wrote, sqlite3.Error or OSError for one that cannot be
    opened; nothing is changed then.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    # Created here because SQLite would make it readable by everyone.
    os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    db = Database(sqlite3.connect(file, timeout=busy_s), execute_plugins=False)
    try:
        require_known_schema(db)
        # Before the first table: later it would need a rewrite of the file.
        db.execute("pragma auto_vacuum = incremental")
        enable_wal(db, busy_s)
        # Enough in WAL mode: a power failure may take the last requests, never the database; a killed process nothing.
        db.execute("pragma synchronous = normal")
        # What is forgotten is overwritten.
        db.execute("pragma secure_delete = on")
        with immediate(db):
            routing_log_migrations().apply(db)
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def reading(file: Path) -> Iterator[Database | None]:
    """The database at `file` for reading, None where there is none.

    Raises RoutingLogUnavailable, also in place of what SQLite raises while it is used.
    """
    if not file.exists() or file.stat().st_size == 0:
        yield None
        return
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=READ_BUSY_S)
        db = Database(connection, execute_plugins=False)
        try:
            require_known_schema(db)
            yield db if db.table("requests").exists() else None
        finally:
            db.close()
    except (sqlite3.Error, OSError, ValueError) as error:
        raise unavailable(file, error) from error


def unavailable(file: Path, error: Exception) -> RoutingLogUnavailable:
    """What is wrong with the log, for people."""
    told = str(error).lower()
    for words, reason, hint in _REASONS:
        if words in told:
            return RoutingLogUnavailable(f"the routing log is off because {reason}", hint=hint.format(file=file))
    return RoutingLogUnavailable(f"the routing log is off because of: {error}", hint=f"Check {file}")


def used_bytes(db: Database) -> int:
    """Bytes that the contents take, without pages that are free."""
    pages, free, page_bytes = (
        int(db.execute(f"pragma {name}").fetchone()[0]) for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * page_bytes


def release_free_pages(db: Database) -> None:
    """Give free pages back to the file system, and leave nothing of them in the write-ahead log."""
    # As a script: a cursor takes one step of these statements, which is one page.
    db.executescript("pragma incremental_vacuum; pragma wal_checkpoint(truncate);")
