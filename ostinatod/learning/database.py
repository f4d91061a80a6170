"""The file that holds what was learned: opened per call, created and brought up to date on first use."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlite_utils import Database

from ostinatod.errors import PlanUnavailable
from ostinatod.learning.schema import learning_migrations
from ostinatod.newer_schema import unknown_steps
from ostinatod.transactions import enable_wal, immediate

_BUSY_S = 30.0


class LearningDatabase:
    """The database at `file`. Any thread may use it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._current_inode: int | None = None
        """Of the file that was brought up to date; whoever deletes that begins anew."""

    @contextmanager
    def open(self) -> Iterator[Database]:
        """A connection of its own.

        Raises PlanUnavailable where the file is damaged, locked, out of reach or a newer version's, which is left as it
        is.
        """
        try:
            with closing(self._connect()) as db:
                yield db
        except (sqlite3.Error, OSError) as error:
            raise PlanUnavailable(
                f"what was learned cannot be read or written: {error}",
                hint=f"Delete {self._file} to begin anew; the routing log is kept",
            ) from error

    def _require_known_schema(self, db: Database) -> None:
        if unknown := unknown_steps(db, learning_migrations()):
            raise PlanUnavailable(
                f"what was learned was written by a newer version of ostinato: it has {unknown[-1]}, unknown here",
                hint=f"Update ostinato, or delete {self._file} to begin anew; the routing log is kept",
            )

    def _connect(self) -> Database:
        with self._lock:
            is_current = self._current_inode is not None and self._current_inode == _inode(self._file)
            if not is_current:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                # Created here because SQLite would make it readable by everyone.
                os.close(os.open(self._file, os.O_CREAT | os.O_RDWR, 0o600))
            db = Database(sqlite3.connect(self._file, timeout=_BUSY_S), execute_plugins=False)
            try:
                if not is_current:
                    self._require_known_schema(db)
                    enable_wal(db, _BUSY_S)
                    with immediate(db):
                        learning_migrations().apply(db)
                    self._current_inode = _inode(self._file)
            except BaseException:
                db.close()
                raise
            return db


def _inode(file: Path) -> int | None:
    """None where there is no file."""
    try:
        return os.stat(file).st_ino
    except FileNotFoundError:
        return None
