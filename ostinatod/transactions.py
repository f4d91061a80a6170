"""Write transactions of SQLite that several threads or programs may want at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlite_utils import Database


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
