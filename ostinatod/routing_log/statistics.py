"""Totals and percentiles of what is logged, as `ostinato stats` shows them. Reads; see `reader` for what is raised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sqlite_utils import Database

from ostinatod import locations
from ostinatod.routing_log.database import reading
from ostinatod.routing_log.operations import MERGED
from ostinatod.sessions.turn_kind import TURN_KINDS

TIMES = ("queue_ms", "ttft_ms", "tpot_ms", "total_ms")
PERCENTILES = (50, 90, 99)

_TOKENS = ("new_tokens", "reused_tokens", "output_tokens")
_PHASES = {"prefill": "new_tokens", "decode": "output_tokens"}
_COLUMNS = (
    *("kind", "status", "break_reason", "lost_tokens", *_TOKENS, *TIMES),
    *(f"{name}_{phase}" for name in ("routes", "coverage") for phase in _PHASES),
)


def model_statistics(file: Path | None = None, fingerprint: str | None = None) -> dict[str, dict[str, Any]]:
    """By model fingerprint: what `ostinato stats` shows of it."""
    with reading(file or locations.routing_log_file()) as db:
        if db is None:
            return {}
        known = db.query(
            "select id, fingerprint from models where ? is null or fingerprint = ?", [fingerprint, fingerprint]
        )
        return {row["fingerprint"]: _model(db, row["id"]) for row in list(known)}


def session_percentiles(sessions: Sequence[tuple[str, str]], file: Path | None = None) -> dict[tuple[str, str], Any]:
    """By (fingerprint, session): medians of TTFT, TPOT, and of the wait after a tool's output, in milliseconds.

    The wait after a tool's output is the TTFT of those turns. None where nothing was measured.
    """
    found: dict[tuple[str, str], Any] = {}
    with reading(file or locations.routing_log_file()) as db:
        for fingerprint, session in sessions:
            rows = _answered(db, fingerprint, session) if db else []
            found[fingerprint, session] = {
                "ttft_ms_p50": _median(row["ttft_ms"] for row in rows),
                "tpot_ms_p50": _median(row["tpot_ms"] for row in rows),
                "wait_after_tool_ms_p50": _median(row["ttft_ms"] for row in rows if row["kind"] == "after_tool"),
            }
    return found


def _answered(db: Database, fingerprint: str, session: str) -> list[dict[str, Any]]:
    rows = db.query(
        "select kind, ttft_ms, tpot_ms from requests r join models m on m.id = r.model_id "
        "where m.fingerprint = ? and r.session = ? and kind != 'side' and status = 'ok'",
        [fingerprint, session],
    )
    return list(rows)


def _model(db: Database, model_id: int) -> dict[str, Any]:
    sessions = next(
        iter(
            db.query(
                "select coalesce(sum(stands_for), 0) as sessions, "
                "coalesce(sum(case when session = :merged then stands_for else 0 end), 0) as sessions_merged, "
                "min(started_at) as started_at, max(last_at) as last_at from sessions where model_id = :model",
                {"merged": MERGED, "model": model_id},
            )
        )
    )
    rows = list(db.query(f"select {', '.join(_COLUMNS)} from requests where model_id = ?", [model_id]))
    return {
        **sessions,
        "requests": len(rows),
        "side_requests": sum(row["kind"] == "side" for row in rows),
        "prefix_breaks": sum(row["break_reason"] is not None for row in rows),
        "lost_tokens": sum(row["lost_tokens"] or 0 for row in rows),
        **{name: sum(row[name] or 0 for row in rows) for name in _TOKENS},
        "statuses": _count(row["status"] for row in rows),
        "phases": {phase: _phase(rows, phase, tokens) for phase, tokens in _PHASES.items()},
        "kinds": {
            kind: _kind(of_kind) for kind in TURN_KINDS if (of_kind := [row for row in rows if row["kind"] == kind])
        },
    }


def _phase(rows: Sequence[Mapping[str, Any]], phase: str, tokens: str) -> dict[str, Any]:
    counted = [row for row in rows if row[f"routes_{phase}"] is not None]
    covered = [row for row in counted if row[f"coverage_{phase}"] is not None]
    routes = sum(row[f"routes_{phase}"] for row in covered)
    hot = sum(row[f"routes_{phase}"] * row[f"coverage_{phase}"] for row in covered)
    return {
        "tokens": sum(row[tokens] or 0 for row in rows),
        "routes": sum(row[f"routes_{phase}"] for row in counted),
        "coverage": round(hot / routes, 6) if routes else None,
    }


def _kind(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    answered = [row for row in rows if row["status"] == "ok"]
    return {
        "requests": len(rows),
        "new_tokens": sum(row["new_tokens"] or 0 for row in rows),
        "reused_tokens": sum(row["reused_tokens"] or 0 for row in rows),
        **{name: _percentiles(row[name] for row in answered) for name in TIMES},
    }


def _percentiles(values: Iterable[float | None]) -> dict[str, float | None]:
    known = [value for value in values if value is not None]
    found = np.percentile(known, PERCENTILES).tolist() if known else [None] * len(PERCENTILES)
    return {f"p{p}": None if value is None else round(value, 3) for p, value in zip(PERCENTILES, found, strict=True)}


def _median(values: Iterable[float | None]) -> float | None:
    return _percentiles(values)["p50"]


def _count(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts
