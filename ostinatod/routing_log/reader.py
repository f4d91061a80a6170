"""What the routing log holds, as values. Opens the database for reading only, once per call; any thread, any process.

Every function takes the database's path, by default the daemon's own, finds nothing where there is none, and raises
RoutingLogUnavailable for one that cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from ostinatod import locations
from ostinatod.profiles.route_log import SessionRoutes
from ostinatod.routing_log.counts import RouteCounts, decode_phases
from ostinatod.routing_log.database import reading, used_bytes
from ostinatod.routing_log.operations import MERGED
from ostinatod.routing_log.records import LoggedRequest, RequestFigures
from ostinatod.sessions.prefix_break import break_detail


@dataclass(frozen=True, slots=True)
class LoggedSession:
    """The sums of one session."""

    id: str
    fingerprint: str
    source: str
    started_at: float
    last_at: float
    turns: int
    requests: int
    new_tokens: int
    reused_tokens: int
    output_tokens: int


def sessions(model_fingerprint: str, file: Path | None = None, *, newest: int | None = None) -> list[SessionRoutes]:
    """The routes of the newest sessions of a model that have any, the one that ended longest ago first.

    Old sessions that were merged come as one, first of all, however few are asked for. Sessions that an engine with
    other layers counted are left out: only those shaped as the latest are comparable.
    """
    with reading(file or locations.routing_log_file()) as db:
        if db is None:
            return []
        # The rows are chosen before they are read: counts are large, and what is sorted would be held in memory.
        chosen = (
            "select s.id from sessions s join models m on m.id = s.model_id "
            "where m.fingerprint = :model and s.prefill is not null"
        )
        rows = list(
            db.query(
                f"select * from sessions where id in ({chosen} and s.session = :merged) or id in "
                f"({chosen} and s.session != :merged order by s.last_at desc, s.id desc limit :newest) "
                "order by session = :merged desc, last_at, id",
                {"model": model_fingerprint, "merged": MERGED, "newest": -1 if newest is None else newest},
            )
        )
        found = [_session_routes(row) for row in rows]
    found = [session for session in found if session.routes]
    latest = max(found, key=lambda session: session.last_at, default=None)
    return [
        session
        for session in found
        if latest and (session.layers, session.n_experts) == (latest.layers, latest.n_experts)
    ]


def request_routes(request_id: str, file: Path | None = None) -> RouteCounts | None:
    """The routes of one request; None where they are not kept any more, or never were."""
    with reading(file or locations.routing_log_file()) as db:
        if db is None:
            return None
        rows = db.query(
            "select prefill, decode from request_counts c join requests r on r.number = c.number where r.id = ?",
            [request_id],
        )
        return next((decode_phases(row["prefill"], row["decode"]) for row in rows), None)


def latest_requests(
    file: Path | None = None,
    *,
    fingerprint: str | None = None,
    session: str | None = None,
    before: str | None = None,
    limit: int = 50,
) -> list[LoggedRequest]:
    """Requests, the latest first; `before` continues after the last of an earlier answer."""
    of_model = "r.model_id = (select id from models where fingerprint = ?)"
    # The sign keeps SQLite from sorting all requests of the model; they are read in the order of their ids then.
    of_model = of_model if session else f"+{of_model}"
    conditions = {of_model: fingerprint, "r.session = ?": session, "r.id < ?": before}
    given = {condition: value for condition, value in conditions.items() if value is not None}
    with reading(file or locations.routing_log_file()) as db:
        if db is None:
            return []
        rows = db.query(
            "select r.*, m.fingerprint from requests r cross join models m on m.id = r.model_id "
            f"where {' and '.join(given) or '1'} order by r.id desc limit ?",
            [*given.values(), limit],
        )
        return [_request(row) for row in rows]


def latest_sessions(
    file: Path | None = None, *, fingerprint: str | None = None, limit: int = 50
) -> list[LoggedSession]:
    """Sessions, the one with the latest request first; merged ones have no identity and are left out."""
    with reading(file or locations.routing_log_file()) as db:
        if db is None:
            return []
        rows = db.query(
            "select s.*, m.fingerprint from sessions s join models m on m.id = s.model_id "
            "where s.session != ? and (? is null or m.fingerprint = ?) order by s.last_at desc, s.id desc limit ?",
            [MERGED, fingerprint, fingerprint, limit],
        )
        return [_session(row) for row in rows]


def fingerprints(file: Path | None = None) -> list[str]:
    """Every model that something is logged of."""
    with reading(file or locations.routing_log_file()) as db:
        return [row["fingerprint"] for row in db.query("select fingerprint from models order by id")] if db else []


def turns_of(fingerprint: str, session: str, file: Path | None = None) -> int:
    """Turns logged of a session, 0 if none."""
    with reading(file or locations.routing_log_file()) as db:
        found = list(_turns(db, fingerprint, session)) if db else []
    return found[0] if found else 0


def database_bytes(file: Path | None = None) -> tuple[int, int]:
    """What the log's contents take, and what its files take on the disk."""
    path = file or locations.routing_log_file()
    with reading(path) as db:
        used = used_bytes(db) if db else 0
    names = (path.name, f"{path.name}-wal", f"{path.name}-shm")
    on_disk = [path.with_name(name).stat().st_size for name in names if path.with_name(name).exists()]
    return used, sum(on_disk)


def _turns(db: Database, fingerprint: str, session: str) -> list[int]:
    rows = db.query(
        "select s.turns from sessions s join models m on m.id = s.model_id where m.fingerprint = ? and s.session = ?",
        [fingerprint, session],
    )
    return [int(row["turns"]) for row in rows]


def _session_routes(row: Mapping[str, Any]) -> SessionRoutes:
    counts = decode_phases(row["prefill"], row["decode"])
    assert counts is not None
    return SessionRoutes(
        session=row["session"],
        started_at=row["started_at"],
        last_at=row["last_at"],
        requests=row["requests"],
        layers=counts.layers,
        prefill=counts.prefill,
        decode=counts.decode,
        new_tokens=row["new_tokens"],
        output_tokens=row["output_tokens"],
        is_merged=row["session"] == MERGED,
    )


def _request(row: Mapping[str, Any]) -> LoggedRequest:
    reason = row["break_reason"]
    told = {"reason": reason, "detail": break_detail(reason, row["break_message"]), "lost_tokens": row["lost_tokens"]}
    counted = row["routes_prefill"] is not None
    return LoggedRequest(
        **{name: row[name] for name in RequestFigures.__dataclass_fields__},
        prefix_break=told if reason else None,
        routes=row["routes_prefill"] + row["routes_decode"] if counted else None,
    )


def _session(row: Mapping[str, Any]) -> LoggedSession:
    return LoggedSession(
        id=row["session"],
        **{name: row[name] for name in LoggedSession.__dataclass_fields__ if name != "id"},
    )
