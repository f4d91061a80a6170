"""Keeping the log within its size: old sessions lose their identity first, then, by halves, their weight.

+------------------------------------------------------------------------------------------------------------------+
| When the contents exceed the cap, the oldest eighth of the sessions (by their last request) is merged, again and  |
| again, until they take at most 80 % of it: their counts are added into one row per model, and their requests are  |
| deleted. The counts in that row are halved first, so a session merged n steps ago weighs 1/2^n of what it did:    |
| habits of long ago fade, and one old workload cannot outvote the present. 80 %, so that a step is not needed at   |
| every request.                                                                                                    |
+------------------------------------------------------------------------------------------------------------------+
"""

from __future__ import annotations

import logging

from sqlite_utils import Database

from ostinatod.routing_log.counts import RouteCounts, decode_phases, encode_phases
from ostinatod.routing_log.database import release_free_pages, used_bytes
from ostinatod.routing_log.operations import MERGED, delete_counts_without_request
from ostinatod.transactions import immediate

log = logging.getLogger(__name__)

TARGET = 0.8
STEP = 8
"""One in so many sessions, or requests, goes in a step."""


def decay(db: Database, cap_bytes: int) -> int:
    """Bring the contents within the cap, if they exceed it; the number of sessions merged."""
    if used_bytes(db) <= cap_bytes:
        return 0
    merged = 0
    while used_bytes(db) > cap_bytes * TARGET:
        with immediate(db):
            step = merge_oldest_sessions(db)
            # What is left are requests: of one huge session, or of none.
            dropped = 0 if step else _drop_oldest_requests(db)
            delete_counts_without_request(db)
        if not step and not dropped:
            break
        merged += step
    release_free_pages(db)
    log.info("routing_log_decayed sessions_merged=%d used_bytes=%d cap_bytes=%d", merged, used_bytes(db), cap_bytes)
    return merged


def merge_oldest_sessions(db: Database) -> int:
    """One step, inside a transaction; how many sessions were merged. The latest session of all is never merged."""
    total = int(db.execute("select count(*) from sessions where session != ?", [MERGED]).fetchone()[0])
    wanted = min(max(1, total // STEP), total - 1)
    if wanted <= 0:
        return 0
    oldest = list(db.query("select * from sessions where session != ? order by last_at, id limit ?", [MERGED, wanted]))
    for model_id in sorted({row["model_id"] for row in oldest}):
        _merge(db, model_id, [row for row in oldest if row["model_id"] == model_id])
    for row in oldest:
        db.execute("delete from requests where model_id = ? and session = ?", [row["model_id"], row["session"]])
        db.execute("delete from sessions where id = ?", [row["id"]])
    db.execute(
        "delete from requests where started_at < ? and "
        "(session is null or (model_id, session) not in (select model_id, session from sessions))",
        [oldest[-1]["last_at"]],
    )
    return len(oldest)


def _merge(db: Database, model_id: int, rows: list[dict[str, object]]) -> None:
    known = list(db.query("select * from sessions where model_id = ? and session = ?", [model_id, MERGED]))
    sums: RouteCounts | None = None
    for row in known:
        older = _counts(row)
        sums = older.halved() if older is not None else None
    for row in rows:
        counts = _counts(row)
        if counts is not None:
            # Counts of another shape are an older engine's: the newer ones replace them.
            sums = sums.plus(counts) if sums is not None and sums.fits(counts) else counts
    prefill, decode = encode_phases(sums) if sums is not None else (None, None)
    names = ("stands_for", "requests", "turns", "new_tokens", "reused_tokens", "output_tokens")
    totals = [sum(int(str(row[name] or 0)) for row in (*known, *rows)) for name in names]
    started_at = min(float(str(row["started_at"])) for row in (*known, *rows))
    last_at = max(float(str(row["last_at"])) for row in (*known, *rows))
    db.execute("delete from sessions where model_id = ? and session = ?", [model_id, MERGED])
    db.execute(
        f"insert into sessions (model_id, session, source, started_at, last_at, prefill, decode, {', '.join(names)}) "
        "values (?, ?, 'prefix', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [model_id, MERGED, started_at, last_at, prefill, decode, *totals],
    )


def _counts(row: dict[str, object]) -> RouteCounts | None:
    prefill, decode = row["prefill"], row["decode"]
    if not isinstance(prefill, bytes) or not isinstance(decode, bytes):
        return None
    return decode_phases(prefill, decode)


def _drop_oldest_requests(db: Database) -> int:
    total = int(db.execute("select count(*) from requests").fetchone()[0])
    return int(
        db.execute(
            "delete from requests where number in (select number from requests order by number limit ?)",
            [max(1, total // STEP) if total else 0],
        ).rowcount
    )
