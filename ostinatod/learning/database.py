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
from ostinatod.transactions import enable_wal

_BUSY_S = 30.0


class LearningDatabase:
    """The database at `file`. Any thread may use it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._is_current = False

    @contextmanager
    def open(self) -> Iterator[Database]:
        """A connection of its own. Raises PlanUnavailable where the file is damaged, locked or out of reach."""
        try:
            with closing(self._connect()) as db:
                yield db
        except (sqlite3.Error, OSError) as error:
            raise PlanUnavailable(
                f"what was learned cannot be read or written: {error}",
                hint=f"Delete {self._file} to begin anew; the routing log is kept",
            ) from error

    def _connect(self) -> Database:
        with self._lock:
            if not self._is_current:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                # Created here because SQLite would make it readable by everyone.
                os.close(os.open(self._file, os.O_CREAT | os.O_RDWR, 0o600))
            db = Database(sqlite3.connect(self._file, timeout=_BUSY_S), execute_plugins=False)
            try:
                if not self._is_current:
                    enable_wal(db, _BUSY_S)
                    learning_migrations().apply(db)
                    self._is_current = True
            except BaseException:
                db.close()
                raise
            return db
