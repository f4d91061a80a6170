"""Write transactions of SQLite that several threads or programs may want at once."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlite_utils import Database

_RETRY_S = 0.01


def enable_wal(db: Database, within_s: float) -> None:
    """Write-ahead logging, waiting for others: SQLite itself does not wait when it changes the journal.

    Raises sqlite3.OperationalError when the database is still locked after `within_s` seconds.
    """
    ends_at = time.monotonic() + within_s
    while True:
        try:
            db.enable_wal()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= ends_at:
                raise
        time.sleep(_RETRY_S)


@contextmanager
def immediate(db: Database) -> Iterator[None]:
    """One write transaction that waits for others at its start; one that became a writer later could only fail.

    Rolled back if the block raises.
    """
    db.execute("begin immediate")
    try:
        yield
    except BaseException:
        db.rollback()
        raise
    db.commit()
