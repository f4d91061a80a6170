"""Schema of the routing log, as steps that every older database still has to take.

A database with a step that is not among these was written by a newer version and is refused before anything is written.
tests/data/routing-log holds a database of every released schema.
"""

from __future__ import annotations

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from ostinatod.errors import RoutingLogUnavailable
from ostinatod.newer_schema import unknown_steps

MIGRATION_SET = "routing-log"


def routing_log_migrations() -> Migrations:
    """The steps in order. A step that has been released is never edited; the next change is a new one."""
    steps = Migrations(MIGRATION_SET)

    @steps()
    def m001_sessions_and_requests(db: Database) -> None:
        db.table("models").create({"id": int, "fingerprint": str}, pk="id", not_null={"fingerprint"})
        db.table("models").create_index(["fingerprint"], unique=True)
        _create_sessions(db)
        _create_requests(db)

    @steps()
    def m002_uploaded_bytes(db: Database) -> None:
        db.table("requests").add_column("uploaded_bytes", int)

    return steps


def require_known_schema(db: Database) -> None:
    """Raises RoutingLogUnavailable for a database that a newer version has written. Reads only."""
    if unknown := unknown_steps(db, routing_log_migrations()):
        raise RoutingLogUnavailable(
            f"the routing log was written by a newer version of ostinato: it has {unknown[-1]}, unknown here",
            hint="Update ostinato, or begin a new log: ostinato forget --all",
        )


def _create_sessions(db: Database) -> None:
    db.table("sessions").create(
        {
            "id": int,
            "model_id": int,
            "session": str,
            "source": str,
            "stands_for": int,
            "started_at": float,
            "last_at": float,
            "turns": int,
            "requests": int,
            "new_tokens": int,
            "reused_tokens": int,
            "output_tokens": int,
            "prefill": bytes,
            "decode": bytes,
        },
        pk="id",
        not_null={"model_id", "session", "source", "stands_for", "started_at", "last_at", "turns", "requests"},
        foreign_keys=[("model_id", "models", "id")],
    )
    db.table("sessions").create_index(["model_id", "session"], unique=True)
    db.table("sessions").create_index(["last_at"])


def _create_requests(db: Database) -> None:
    db.table("requests").create(
        {
            "number": int,
            "id": str,
            "model_id": int,
            "session": str,
            "turn": int,
            "kind": str,
            "dialect": str,
            "status": str,
            "started_at": float,
            "queue_ms": float,
            "ttft_ms": float,
            "tpot_ms": float,
            "total_ms": float,
            "new_tokens": int,
            "reused_tokens": int,
            "output_tokens": int,
            "break_reason": str,
            "break_message": int,
            "lost_tokens": int,
            "generation": int,
            "path": str,
            "routes_prefill": int,
            "routes_decode": int,
            "cold_routes": int,
            "coverage_prefill": float,
            "coverage_decode": float,
        },
        pk="number",
        not_null={"id", "model_id", "kind", "dialect", "status", "started_at", "total_ms"},
        foreign_keys=[("model_id", "models", "id")],
    )
    db.table("requests").create_index(["id"], unique=True)
    db.table("requests").create_index(["model_id", "session"])
    # Apart from the requests, which outlive them: the pages of deleted rows are used again, holes in rows are not.
    db.table("request_counts").create(
        {"number": int, "prefill": bytes, "decode": bytes}, pk="number", not_null={"prefill", "decode"}
    )
