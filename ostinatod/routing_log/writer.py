"""The one writer of the routing log: a thread fed by a bounded queue. Nothing it does or fails to do delays a request.

state   a record comes            the database fails                  after RETRY_S
------  ------------------------  ----------------------------------  ---------------------------
on      it is written             off, with the reason; it is lost    -
off     it is dropped, counted    -                                   the next record is tried

Every transaction is committed at once, so a killed process loses what was in the queue, which is at most the request
that ended last. A database that is damaged, or that a newer version wrote, is left as it is.
"""

from __future__ import annotations

import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from sqlite_utils import Database

from ostinatod.errors import RoutingLogUnavailable
from ostinatod.routing_log.database import (
    WRITE_BUSY_S,
    open_for_writing,
    release_free_pages,
    unavailable,
)
from ostinatod.routing_log.decay import decay
from ostinatod.routing_log.operations import Forgotten, Selection, add_request, forget
from ostinatod.routing_log.records import RequestRecord
from ostinatod.transactions import immediate

log = logging.getLogger(__name__)

QUEUE_RECORDS = 128
"""About 20 MB of counts for the largest models."""
RETRY_S = 30.0
COMMAND_PATIENCE_S = 60.0
CLOSE_PATIENCE_S = 10.0

_T = TypeVar("_T")
_Command: TypeAlias = "tuple[Callable[[], Any], Future[Any]]"
_Item: TypeAlias = "RequestRecord | _Command | None"


@dataclass(frozen=True, slots=True)
class LogStatus:
    """What the daemon tells of the log."""

    state: Literal["on", "off"]
    reason: str | None
    hint: str | None
    written: int
    dropped: int
    """Records lost since the daemon started: the queue was full, or the log was off."""
    queued: int
    cap_bytes: int


class RoutingLog:
    """Writes to `file` and keeps its contents within `cap_bytes`; 0 keeps no log. Methods may be called by any thread.

    Opens nothing before `start`.
    """

    def __init__(
        self,
        file: Path,
        cap_bytes: int,
        *,
        retry_s: float = RETRY_S,
        busy_s: float = WRITE_BUSY_S,
        queue_records: int = QUEUE_RECORDS,
    ) -> None:
        self.file = file
        self._cap_bytes = cap_bytes
        self._retry_s = retry_s
        self._busy_s = busy_s
        self._queue: queue.Queue[_Item] = queue.Queue(queue_records)
        self._thread = threading.Thread(target=self._run, name="routing-log", daemon=True)
        self._lock = threading.Lock()
        self._database: Database | None = None
        self._inode = 0
        self._fault: RoutingLogUnavailable | None = None
        self._retry_at = 0.0
        self._written = 0
        self._dropped = 0

    def start(self) -> None:
        """Open the database, on the writer's thread, and write what comes."""
        if self._cap_bytes:
            self._thread.start()

    def put(self, record: RequestRecord) -> None:
        """Hand a record over, without waiting; it is dropped, and counted, if the writer cannot keep up."""
        if not self._cap_bytes:
            return
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self._drop(1)

    def status(self) -> LogStatus:
        """How the log is doing."""
        with self._lock:
            fault, written, dropped = self._fault, self._written, self._dropped
        if not self._cap_bytes:
            fault = RoutingLogUnavailable(
                "the routing log is off because its size is set to 0", hint="Keep one: set routing_log_bytes"
            )
        return LogStatus(
            state="off" if fault else "on",
            reason=fault.message if fault else None,
            hint=fault.hint if fault else None,
            written=written,
            dropped=dropped,
            queued=self._queue.qsize(),
            cap_bytes=self._cap_bytes,
        )

    def forget(self, selection: Selection) -> Forgotten:
        """Delete what is selected, and its traces in the files. Blocks. Raises RoutingLogUnavailable."""

        def work(db: Database) -> Forgotten:
            with immediate(db):
                forgotten = forget(db, selection)
            release_free_pages(db)
            return forgotten

        return self._command(lambda: self._use(work)) if self.file.exists() else Forgotten(0, 0)

    def begin_anew(self) -> Forgotten:
        """Delete the whole log, also one that is damaged or too new. Blocks. Raises RoutingLogUnavailable."""
        try:
            forgotten = self.forget(Selection())
        except RoutingLogUnavailable as error:
            log.warning("routing_log_deleted_unread reason=%r", error.message)
            forgotten = Forgotten(0, 0)
        self._command(self._delete_files)
        return forgotten

    def flush(self) -> None:
        """Return when everything handed over before has been written or dropped. Blocks."""
        self._command(lambda: None)

    def close(self) -> None:
        """Write what is queued and close the database. Blocks for a bounded time; may be called again."""
        if not self._thread.is_alive():
            return
        try:
            self._queue.put(None, timeout=CLOSE_PATIENCE_S)
        except queue.Full:
            log.warning("routing_log_left_open queued=%d", self._queue.qsize())
        else:
            self._thread.join(CLOSE_PATIENCE_S)

    def _command(self, work: Callable[[], _T]) -> _T:
        """Have the writer do something after what is queued; here and now where there is none."""
        if not self._thread.is_alive():
            try:
                return work()
            finally:
                self._close_database()
        done: Future[_T] = Future()
        try:
            self._queue.put((work, done), timeout=COMMAND_PATIENCE_S)
            return done.result(COMMAND_PATIENCE_S)
        except (queue.Full, TimeoutError) as error:
            raise RoutingLogUnavailable("the routing log's writer does not answer", hint="Try again later") from error

    # What follows runs on the writer's thread.

    def _run(self) -> None:
        self._decay()
        is_open = True
        while is_open:
            waiting = [self._queue.get()]
            while not self._queue.empty():
                waiting.append(self._queue.get())
            is_open = None not in waiting
            # Records that queued up meanwhile share one transaction; commands keep their place among them.
            for _, group in groupby(waiting, key=type):
                items = list(group)
                self._write([item for item in items if isinstance(item, RequestRecord)])
                for item in items:
                    if isinstance(item, tuple):
                        _answer(*item)
        self._close_database()

    def _write(self, records: Sequence[RequestRecord]) -> None:
        if not records:
            return
        if self._fault is not None and time.monotonic() < self._retry_at:
            self._drop(len(records))
            return

        def work(db: Database) -> None:
            with immediate(db):
                for record in records:
                    add_request(db, record)

        try:
            self._use(work)
        except RoutingLogUnavailable:
            self._drop(len(records))
            return
        with self._lock:
            self._written += len(records)
        self._decay()

    def _decay(self) -> None:
        try:
            self._use(lambda db: decay(db, self._cap_bytes))
        except RoutingLogUnavailable:
            log.debug("routing_log_not_decayed")

    def _use(self, work: Callable[[Database], _T]) -> _T:
        """Work on the open database. Raises RoutingLogUnavailable, and is off from then on, if it fails."""
        try:
            done = work(self._open())
        except (sqlite3.Error, OSError, ValueError, RoutingLogUnavailable) as error:
            self._close_database()
            fault = error if isinstance(error, RoutingLogUnavailable) else unavailable(self.file, error)
            if self._fault is None:
                log.warning("routing_log_off reason=%r", fault.message)
            with self._lock:
                self._fault = fault
            self._retry_at = time.monotonic() + self._retry_s
            raise fault from error
        if self._fault is not None:
            log.info("routing_log_on")
            with self._lock:
                self._fault = None
        return done

    def _open(self) -> Database:
        if self._database is not None and self._inode != _inode(self.file):
            # Somebody deleted the file; what is written to it now would be lost with the process.
            self._close_database()
        if self._database is None:
            self._database = open_for_writing(self.file, busy_s=self._busy_s)
            self._inode = _inode(self.file)
        return self._database

    def _close_database(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _delete_files(self) -> None:
        self._close_database()
        try:
            for name in (self.file.name, f"{self.file.name}-wal", f"{self.file.name}-shm"):
                self.file.with_name(name).unlink(missing_ok=True)
        except OSError as error:
            raise unavailable(self.file, error) from error
        with self._lock:
            self._fault = None

    def _drop(self, records: int) -> None:
        with self._lock:
            self._dropped += records
            dropped = self._dropped
        log.warning("routing_log_dropped requests=%d since_start=%d", records, dropped)


def _answer(work: Callable[[], Any], done: Future[Any]) -> None:
    try:
        done.set_result(work())
    except Exception as error:
        done.set_exception(error)


def _inode(file: Path) -> int:
    try:
        return os.stat(file).st_ino
    except FileNotFoundError:
        return -1
