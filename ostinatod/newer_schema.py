"""Whether a database was written by a newer version: its steps of migration tell. Reads only."""

from __future__ import annotations

from contextlib import closing

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations


def unknown_steps(db: Database, migrations: Migrations) -> list[str]:
    """Names of the steps that `db` has taken and `migrations` does not have, in order; none for an empty database."""
    if not db.table(Migrations.migrations_table).exists():
        return []
    with closing(Database(memory=True, execute_plugins=False)) as empty:
        known = {step.name for step in migrations.pending(empty)}
    return [step.name for step in migrations.applied(db) if step.name not in known]
