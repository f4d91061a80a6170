"""What is logged of one request, put and read back. Values only: numbers, and words from fixed lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from ostinatod import errors
from ostinatod.routing_log.counts import RouteCounts
from ostinatod.sessions.identity import SessionSource
from ostinatod.sessions.prefix_break import PrefixBreak
from ostinatod.sessions.turn_kind import TurnKind

DIALECTS = ("openai", "responses", "anthropic", "ollama")
SOURCES: tuple[SessionSource, ...] = get_args(SessionSource)
PATHS = ("stock", "split", "upload", "choice")
"""How the engine computed a prompt's cold routes (paper 3.3): by llama.cpp's own nodes, without a residency set; all by
the CPU branch; all with experts that were uploaded; or both, each expert where that was expected to be faster."""
OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFigures:
    """What is the same on both sides of the database. None where a value is not known; times are milliseconds."""

    id: str
    """The daemon's own id of the request."""
    fingerprint: str
    """Of the model: hex SHA-256 over its GGUF headers."""
    session: str | None
    turn: int | None
    """None for requests that are no turn of their session: side requests, completions without a conversation."""
    kind: str
    dialect: str
    status: str
    """"ok", "cancelled", or the kind of the error."""
    started_at: float
    """Unix seconds."""
    queue_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    total_ms: float
    new_tokens: int | None
    reused_tokens: int | None
    output_tokens: int | None
    generation: int | None
    """Of the residency set that the engine ran with."""
    path: str | None
    uploaded_bytes: int | None
    """Of cold experts."""
    cold_routes: int | None
    coverage_prefill: float | None
    """Share of the prefill routes whose experts were hot."""
    coverage_decode: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord(RequestFigures):
    """One request that has ended, to be logged."""

    kind: TurnKind
    source: SessionSource | None
    prefix_break: PrefixBreak | None
    counts: RouteCounts | None

    @property
    def routes(self) -> int | None:
        """Routes of both phases."""
        return None if self.counts is None else self.counts.routes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRequest(RequestFigures):
    """One request as it was logged."""

    prefix_break: Mapping[str, Any] | None
    """reason, detail, lost_tokens."""
    routes: int | None


def known_word(word: str | None, known: tuple[str, ...] | frozenset[str]) -> str | None:
    """`word` if it is one of ours, else "other": whatever else reaches the log, text does not."""
    return word if word is None or word in known else OTHER


def known_statuses() -> frozenset[str]:
    """Every status that a request can end with."""
    kinds = {OTHER, "ok", "cancelled"}
    pending: list[type[errors.OstinatoError]] = [errors.OstinatoError]
    while pending:
        error = pending.pop()
        kinds.add(error.kind)
        pending += error.__subclasses__()
    return frozenset(kinds)
