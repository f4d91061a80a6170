"""Every residency set that a model was given: when, why, what it was expected to do and what it did.

A generation is active, superseded by a later one, or rolled back. Its set is kept as the bytes of its residency file,
so that any can be had again; the file of the active one lies where engines are told to read it. Any thread may use it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from sqlite_utils import Database

from ostinatod.learning.capacity import FROM_ENGINE, Capacity
from ostinatod.learning.database import LearningDatabase
from ostinatod.profiles.residency import Residency, decode_residency, encode_residency, write_residency
from ostinatod.transactions import immediate

Source = Literal["day0", "imatrix", "learned", "undo", "file"]
State = Literal["active", "superseded", "rolled_back"]

_BUSY_S = 30.0


@dataclass(frozen=True, slots=True)
class Generation:
    """One set of a model. Coverage is a share of routes; None where it is not known."""

    generation: int
    created_at: float
    """Unix seconds."""
    source: Source
    state: State
    sessions: int
    """That it was learned from."""
    hot_experts: int
    moved: int
    """Experts copied to change to it."""
    coverage_held_out: float | None
    """Expected when it was made."""
    coverage_measured: float | None
    """On the sessions since."""
    tpot_ms_measured: float | None
    sessions_measured: int
    note: str
    origin: int | None = None
    """The generation whose set this one returned to."""
    tpot_ms_predicted: float | None = None
    """Expected when it was made."""


class Generations:
    """The database at `file` and the residency files in `directory`, both created on first use."""

    def __init__(self, file: Path, directory: Path) -> None:
        self._database = LearningDatabase(file)
        self._directory = directory

    def history(self, fingerprint: str) -> list[Generation]:
        """All generations of a model, the newest first."""
        with self._database.open() as db:
            # Without the sets, which are many times larger.
            columns = ", ".join(Generation.__dataclass_fields__)
            rows = db.query(
                f"select {columns} from generations where fingerprint = ? order by generation desc", [fingerprint]
            )
            return [_generation(row) for row in rows]

    def active(self, fingerprint: str) -> Generation | None:
        """The generation that engines of this model are started with."""
        return next((item for item in self.history(fingerprint) if item.state == "active"), None)

    def previous(self, fingerprint: str) -> Generation | None:
        """The one to go back to: active before the active one, or before the one that that returned to."""
        history = self.history(fingerprint)
        active = next((item for item in history if item.state == "active"), None)
        if active is None:
            return None
        newest = active.origin or active.generation
        return next((item for item in history if item.state == "superseded" and item.generation < newest), None)

    def residency(self, fingerprint: str, generation: int) -> Residency:
        """The set of a generation. Raises KeyError for one that does not exist, ResidencyError for a damaged one."""
        with self._database.open() as db:
            rows = list(
                db.query(
                    "select residency from generations where fingerprint = ? and generation = ?",
                    [fingerprint, generation],
                )
            )
        if not rows:
            raise KeyError(generation)
        return decode_residency(rows[0]["residency"])

    def next_number(self, fingerprint: str) -> int:
        """The number of the next generation."""
        history = self.history(fingerprint)
        return history[0].generation + 1 if history else 1

    def active_file(self, fingerprint: str) -> Path:
        """Where the set in use lies; it exists once a generation is active."""
        return self._directory / f"{fingerprint}.residency"

    def candidate_file(self, residency: Residency) -> Path:
        """Write a set where an engine can read it before it is active; `activate` removes it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{residency.layout.fingerprint}.next.residency"
        write_residency(path, residency)
        return path

    def activate(self, residency: Residency, generation: Generation, *, rolled_back: bool = False) -> Path:
        """Make a new generation the active one; the one before is superseded, or rolled back. Returns its file."""
        fingerprint = residency.layout.fingerprint
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self.active_file(fingerprint)
        with self._database.open() as db, immediate(db):
            db.execute(
                "update generations set state = ? where fingerprint = ? and state = 'active'",
                ["rolled_back" if rolled_back else "superseded", fingerprint],
            )
            row = {name: getattr(generation, name) for name in Generation.__dataclass_fields__}
            db.table("generations").insert(
                {**row, "fingerprint": fingerprint, "state": "active", "residency": encode_residency(residency)}
            )
            write_residency(path, residency)
        path.with_name(f"{fingerprint}.next.residency").unlink(missing_ok=True)
        return path

    def reject(self, fingerprint: str, generation: int, before: int | None, note: str) -> None:
        """Take back an activation that the engine did not take; the generation `before` is active again."""
        path = self.active_file(fingerprint)
        set_before = None if before is None else self.residency(fingerprint, before)
        with self._database.open() as db, immediate(db):
            self._set(db, fingerprint, generation, state="rolled_back", note=note)
            if before is not None and set_before is not None:
                self._set(db, fingerprint, before, state="active")
                write_residency(path, set_before)
            else:
                path.unlink(missing_ok=True)

    def discard_candidate(self, fingerprint: str) -> None:
        """Remove a candidate that was refused."""
        self.active_file(fingerprint).with_name(f"{fingerprint}.next.residency").unlink(missing_ok=True)

    def restore_file(self, fingerprint: str, generation: int) -> Path:
        """The file of the active generation, written again if it is missing, damaged or another generation's.

        A process that is killed while it activates one may leave its file without its row.
        """
        path = self.active_file(fingerprint)
        residency = self.residency(fingerprint, generation)
        if not path.exists() or path.read_bytes() != encode_residency(residency):
            self._directory.mkdir(parents=True, exist_ok=True)
            write_residency(path, residency)
        return path

    def files(self) -> dict[str, Path]:
        """The files of active generations that exist, by fingerprint."""
        return {path.stem: path for path in self._directory.glob("*.residency") if "." not in path.stem}

    def measured(self, fingerprint: str, measured: Generation) -> None:
        """Keep what a generation was measured to do."""
        with self._database.open() as db, immediate(db):
            self._set(
                db,
                fingerprint,
                measured.generation,
                coverage_measured=measured.coverage_measured,
                tpot_ms_measured=measured.tpot_ms_measured,
                sessions_measured=measured.sessions_measured,
            )

    def keep_capacity(self, fingerprint: str, capacity: Capacity) -> None:
        """Remember what an engine's capacity test found, for the next load."""
        row = {
            "pool_bytes": json.dumps(capacity.pool_bytes),
            "gpu": json.dumps(capacity.gpu),
            "unlearned_bytes": None if capacity.unlearned_bytes is None else json.dumps(capacity.unlearned_bytes),
        }
        with self._database.open() as db, immediate(db):
            db.table("capacities").upsert({"fingerprint": fingerprint, **row}, pk="fingerprint")

    def capacity(self, fingerprint: str) -> Capacity | None:
        """What an engine's capacity test found last."""
        with self._database.open() as db:
            rows = list(db.query("select * from capacities where fingerprint = ?", [fingerprint]))
        if not rows:
            return None
        pool_bytes, gpu = (tuple(json.loads(rows[0][name])) for name in ("pool_bytes", "gpu"))
        unlearned = rows[0]["unlearned_bytes"]
        return Capacity(pool_bytes, gpu, FROM_ENGINE, None if unlearned is None else tuple(json.loads(unlearned)))

    def _set(self, db: Database, fingerprint: str, generation: int, **changes: Any) -> None:
        db.table("generations").update((fingerprint, generation), changes)


def _generation(row: Mapping[str, Any]) -> Generation:
    values = {name: row[name] for name in Generation.__dataclass_fields__}
    return replace(Generation(**values), source=cast(Source, row["source"]), state=cast(State, row["state"]))
