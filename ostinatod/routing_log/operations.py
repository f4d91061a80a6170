"""What is done to the database inside one transaction: a request added, data forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlite_utils import Database

from ostinatod.routing_log.counts import decode_phases, encode_phases
from ostinatod.routing_log.records import (
    DIALECTS,
    PATHS,
    SOURCES,
    RequestFigures,
    RequestRecord,
    known_statuses,
    known_word,
)
from ostinatod.sessions.prefix_break import BREAK_REASONS
from ostinatod.sessions.turn_kind import TURN_KINDS

KEPT_REQUEST_COUNTS = 500
"""Requests, newest first, whose own counts are kept beside their session's sum."""

MERGED = "merged"
"""Stands in place of a session's name in the row that old sessions of a model are merged into."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What to forget; everything where all are None. What is given must all hold."""

    fingerprint: str | None = None
    sessions: frozenset[str] | None = None
    """Names as the log has them."""
    before: float | None = None
    """Unix seconds: sessions whose last request ended before it, and requests that began before it."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How much was forgotten. A merged session counts as one."""

    sessions: int
    requests: int


def add_request(db: Database, record: RequestRecord) -> None:
    """Log one request and add it to the sums of its session. A request that is logged already changes nothing."""
    model_id = _model_id(db, record.fingerprint)
    prefill, decode = encode_phases(record.counts) if record.counts is not None else (None, None)
    same = {name: getattr(record, name) for name in RequestFigures.__dataclass_fields__ if name != "fingerprint"}
    row: dict[str, Any] = {
        **same,
        "model_id": model_id,
        "kind": known_word(record.kind, TURN_KINDS),
        "dialect": known_word(record.dialect, DIALECTS),
        "status": known_word(record.status, known_statuses()),
        "path": known_word(record.path, PATHS),
        "break_reason": known_word(record.prefix_break.reason, BREAK_REASONS) if record.prefix_break else None,
        "break_message": record.prefix_break.message if record.prefix_break else None,
        "lost_tokens": record.prefix_break.lost_tokens if record.prefix_break else None,
        "routes_prefill": None if record.counts is None else int(record.counts.prefill.sum()),
        "routes_decode": None if record.counts is None else int(record.counts.decode.sum()),
    }
    places = ", ".join(f":{name}" for name in row)
    inserted = db.execute(f"insert or ignore into requests ({', '.join(row)}) values ({places})", row)
    if not inserted.rowcount:
        return
    if record.counts is not None:
        db.execute("insert into request_counts values (?, ?, ?)", [inserted.lastrowid, prefill, decode])
        db.execute(
            "delete from request_counts where number <= "
            "(select number from request_counts order by number desc limit 1 offset ?)",
            [KEPT_REQUEST_COUNTS],
        )
    if record.session is not None and record.kind != "side":
        _add_to_session(db, model_id, record, prefill, decode)


def forget(db: Database, selection: Selection) -> Forgotten:
    """Delete what is selected. Merged sessions go when any of what was merged may be selected by time."""
    of_session: list[str] = []
    of_request: list[str] = []
    values: list[Any] = []
    if selection.fingerprint is not None:
        condition = "model_id in (select id from models where fingerprint = ?)"
        of_session.append(condition)
        of_request.append(condition)
        values.append(selection.fingerprint)
    if selection.sessions is not None:
        condition = f"session in ({', '.join('?' * len(selection.sessions))})"
        of_session.append(condition)
        of_request.append(condition)
        values += sorted(selection.sessions)
    if selection.before is not None:
        of_session.append(f"(case session when '{MERGED}' then started_at else last_at end) < ?")
        of_request.append("started_at < ?")
        values.append(selection.before)
    where = {table: " and ".join(c) or "1" for table, c in (("sessions", of_session), ("requests", of_request))}
    # First, while their sessions are there: a session that is forgotten takes all its requests along.
    selected = f"select model_id, session from sessions where {where['sessions']}"
    both = f"({where['requests']}) or (model_id, session) in ({selected})"
    requests = db.execute(f"delete from requests where {both}", [*values, *values]).rowcount
    sessions = db.execute(f"delete from sessions where {where['sessions']}", values).rowcount
    db.execute(
        "delete from models where id not in (select model_id from sessions)"
        " and id not in (select model_id from requests)"
    )
    delete_counts_without_request(db)
    return Forgotten(sessions, requests)


def delete_counts_without_request(db: Database) -> None:
    """To be done after requests were deleted."""
    db.execute("delete from request_counts where number not in (select number from requests)")


def _model_id(db: Database, fingerprint: str) -> int:
    db.execute("insert or ignore into models (fingerprint) values (?)", [fingerprint])
    return int(db.execute("select id from models where fingerprint = ?", [fingerprint]).fetchone()[0])


def _add_to_session(
    db: Database, model_id: int, record: RequestRecord, prefill: bytes | None, decode: bytes | None
) -> None:
    known = db.execute(
        "select prefill, decode from sessions where model_id = ? and session = ?", [model_id, record.session]
    ).fetchone()
    if known is not None and record.counts is not None and known[0] is not None:
        sums = decode_phases(known[0], known[1])
        # Counts of another shape are an older engine's: the newer ones replace them.
        if sums is not None and sums.fits(record.counts):
            prefill, decode = encode_phases(sums.plus(record.counts))
    elif known is not None and record.counts is None:
        prefill, decode = known
    ended_at = record.started_at + record.total_ms / 1000
    db.execute(
        """
        insert into sessions (model_id, session, source, stands_for, started_at, last_at, turns, requests,
                              new_tokens, reused_tokens, output_tokens, prefill, decode)
        values (?, ?, ?, 1, ?, ?, ?, 1, ?, ?, ?, ?, ?)
        on conflict (model_id, session) do update set
            started_at = min(started_at, excluded.started_at), last_at = max(last_at, excluded.last_at),
            turns = max(turns, excluded.turns), requests = requests + 1,
            new_tokens = new_tokens + excluded.new_tokens, reused_tokens = reused_tokens + excluded.reused_tokens,
            output_tokens = output_tokens + excluded.output_tokens,
            prefill = excluded.prefill, decode = excluded.decode
        """,
        [
            *(model_id, record.session, known_word(record.source, SOURCES) or "prefix"),
            *(record.started_at, ended_at, record.turn or 0),
            *(record.new_tokens or 0, record.reused_tokens or 0, record.output_tokens or 0),
            *(prefill, decode),
        ],
    )
