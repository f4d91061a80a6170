"""Schema of the catalogue, as steps that every older database still has to take."""

from __future__ import annotations

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations


def catalogue_migrations() -> Migrations:
    """The steps in order. A step that has been released is never edited; the next change is a new one."""
    steps = Migrations("catalogue")

    @steps()
    def m001_models(db: Database) -> None:
        db.table("models").create(
            {
                "key": str,
                "name": str,
                "digest": str,
                "source": str,
                "reference": str,
                "size_bytes": int,
                "modified_at": str,
                "shape": str,
            },
            pk="key",
            not_null={"key", "name", "digest", "source", "size_bytes", "modified_at", "shape"},
        )
        db.table("model_parts").create(
            {"key": str, "position": int, "path": str, "size_bytes": int, "mtime_ns": int},
            pk=("key", "position"),
            not_null={"key", "position", "path", "size_bytes", "mtime_ns"},
        )

    @steps()
    def m002_downloads(db: Database) -> None:
        db.table("downloads").create({"path": str, "key": str}, pk="path", not_null={"path", "key"})

    return steps
