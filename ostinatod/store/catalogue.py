"""The registered models, in SQLite. One connection per call, so it may be used from any thread or process.

`models` and `model_parts` say which name stands for which files; `downloads` says which files this program fetched,
under which name, and may therefore delete. A download is noted before its first byte, so that nothing is ever orphaned.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from ostinatod.store.migrations import catalogue_migrations
from ostinatod.store.records import ModelRecord, ModelShape
from ostinatod.transactions import enable_wal, immediate

_BUSY_S = 30.0


@dataclass(frozen=True, slots=True)
class PartStamp:
    """What a part looked like when its header was read; a different stamp means another file."""

    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> PartStamp:
        """The stamp of a file as it is now. Raises OSError."""
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Entry:
    """A record and the stamps of its parts."""

    record: ModelRecord
    stamps: tuple[PartStamp, ...]


class Catalogue:
    """The database at `file`; created, or brought up to date, on first use."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._is_current = False

    def get(self, key: str) -> Entry | None:
        """The entry under a name's key."""
        with self._reading() as db:
            rows = list(db.query("select * from models where key = ?", [key]))
            return _entry(db, rows[0]) if rows else None

    def entries(self) -> list[Entry]:
        """All entries, the most recently changed first."""
        with self._reading() as db:
            return [_entry(db, row) for row in list(db.query("select * from models order by modified_at desc, key"))]

    def put(self, key: str, entry: Entry) -> None:
        """Registers or replaces an entry."""
        record = entry.record
        row = {
            "key": key,
            "name": record.name,
            "digest": record.digest,
            "source": record.source,
            "reference": record.reference,
            "size_bytes": record.size_bytes,
            "modified_at": record.modified_at.isoformat(),
            "shape": json.dumps(asdict(record.shape)),
        }
        parts = [
            {"key": key, "position": position, "path": str(path), **asdict(stamp)}
            for position, (path, stamp) in enumerate(zip(record.parts, entry.stamps, strict=True))
        ]
        with self._writing() as db:
            db.execute("delete from model_parts where key = ?", [key])
            db.table("models").insert(row, pk="key", replace=True)
            db.table("model_parts").insert_all(parts, pk=("key", "position"))

    def delete(self, key: str) -> bool:
        """Forgets an entry; its downloads stay noted. False if there was none."""
        with self._writing() as db:
            db.execute("delete from model_parts where key = ?", [key])
            return db.execute("delete from models where key = ?", [key]).rowcount > 0

    def note_downloads(self, key: str, paths: Sequence[Path]) -> None:
        """Records that `paths` are about to be fetched for a name. One that is already noted keeps its name."""
        with self._writing() as db:
            db.table("downloads").insert_all(({"path": str(p), "key": key} for p in paths), pk="path", ignore=True)

    def forget_downloads(self, paths: Sequence[Path]) -> None:
        """Records that `paths` are gone."""
        with self._writing() as db:
            for path in paths:
                db.execute("delete from downloads where path = ?", [str(path)])

    def downloads(self) -> Mapping[Path, str]:
        """Every file fetched, or begun, by this program, and the key of the name that it was fetched for."""
        with self._reading() as db:
            return {Path(row["path"]): row["key"] for row in db.query("select path, key from downloads")}

    @contextmanager
    def _reading(self) -> Iterator[Database]:
        self._bring_up_to_date()
        with self._connection() as db:
            yield db

    @contextmanager
    def _writing(self) -> Iterator[Database]:
        self._bring_up_to_date()
        with self._connection() as db, immediate(db):
            yield db

    @contextmanager
    def _connection(self) -> Iterator[Database]:
        db = Database(sqlite3.connect(self._file, timeout=_BUSY_S), execute_plugins=False)
        try:
            # Enough in WAL mode: a power failure may take the last change, never the database.
            db.execute("pragma synchronous = normal")
            yield db
        finally:
            db.close()

    def _bring_up_to_date(self) -> None:
        with self._lock:
            if self._is_current:
                return
            self._file.parent.mkdir(parents=True, exist_ok=True)
            # Created here because SQLite would make it readable by everyone.
            os.close(os.open(self._file, os.O_CREAT | os.O_RDWR, 0o600))
            with self._connection() as db:
                enable_wal(db, _BUSY_S)
                with immediate(db):
                    catalogue_migrations().apply(db)
            self._is_current = True


def _entry(db: Database, row: Mapping[str, Any]) -> Entry:
    parts = list(db.query("select * from model_parts where key = ? order by position", [row["key"]]))
    known = {field.name for field in fields(ModelShape)}
    shape = {key: value for key, value in json.loads(row["shape"]).items() if key in known}
    record = ModelRecord(
        name=row["name"],
        digest=row["digest"],
        parts=tuple(Path(part["path"]) for part in parts),
        size_bytes=row["size_bytes"],
        modified_at=datetime.fromisoformat(row["modified_at"]),
        source=row["source"],
        shape=ModelShape(**shape),
        reference=row["reference"],
    )
    return Entry(record, tuple(PartStamp(part["size_bytes"], part["mtime_ns"]) for part in parts))
