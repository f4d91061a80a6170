"""Schema of the learning database, as steps that every older database still has to take."""

from __future__ import annotations

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations


def learning_migrations() -> Migrations:
    """The steps in order. A step that has been released is never edited; the next change is a new one."""
    steps = Migrations("learning")

    @steps()
    def m001_generations(db: Database) -> None:
        db.table("generations").create(
            {
                "fingerprint": str,
                "generation": int,
                "created_at": float,
                "source": str,
                "state": str,
                "sessions": int,
                "hot_experts": int,
                "moved": int,
                "coverage_held_out": float,
                "coverage_measured": float,
                "tpot_ms_measured": float,
                "sessions_measured": int,
                "note": str,
                "origin": int,
                "residency": bytes,
            },
            pk=("fingerprint", "generation"),
            not_null={
                *("fingerprint", "generation", "created_at", "source", "state", "sessions", "hot_experts", "moved"),
                *("sessions_measured", "note", "residency"),
            },
        )
        db.table("capacities").create(
            {"fingerprint": str, "pool_bytes": str, "gpu": str},
            pk="fingerprint",
            not_null={"fingerprint", "pool_bytes", "gpu"},
        )

    @steps()
    def m002_predictions(db: Database) -> None:
        db.table("generations").add_column("tpot_ms_predicted", float)
        db.table("calibrations").create(
            {
                "machine": str,
                "build": str,
                "fingerprint": str,
                "since": float,
                "updated_at": float,
                "measured": str,
            },
            pk=("machine", "build", "fingerprint"),
            not_null={"since", "updated_at", "measured"},
        )

    @steps()
    def m003_unlearned_bytes(db: Database) -> None:
        db.table("capacities").add_column("unlearned_bytes", str)

    return steps
