"""From what was seen of a request to its record: session and turn, the engine's counts, times. Used by one thread.

Nothing here waits for a network or a disk but for the turns of a session that is new to this process.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinatod.errors import EngineDied, RoutingLogUnavailable
from ostinatod.routing_log import reader
from ostinatod.routing_log.attribution import EngineLedger, counted_tokens
from ostinatod.routing_log.counts import RouteCounts, read_engine_counts
from ostinatod.routing_log.engine_work import EngineWork, PathTaken, WorkLedger
from ostinatod.routing_log.records import RequestRecord
from ostinatod.routing_log.writer import RoutingLog
from ostinatod.sessions.identity import explicit_session, session_hash
from ostinatod.sessions.tracker import SessionTracker, Turn

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as it arrived."""

    id: str
    fingerprint: str
    k: int
    """Experts per token and layer; 0 for a dense model."""
    dialect: str
    request: Mapping[str, Any]
    headers: Mapping[str, str]
    """The client's, with lower-case names."""
    stream: bool
    started_at: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request went. Times are milliseconds since it arrived; None where a step was not reached or not told."""

    status: str
    total_ms: float
    admitted_ms: float | None = None
    first_byte_ms: float | None = None
    prompt_tokens: int | None = None
    reused_tokens: int | None = None
    output_tokens: int | None = None
    prompt_ms: float | None = None
    """The engine's own measure of reading the prompt."""
    decode_ms: float | None = None

    @property
    def new_tokens(self) -> int | None:
        """Prompt tokens that were read."""
        if self.prompt_tokens is None or self.reused_tokens is None:
            return None
        return max(0, self.prompt_tokens - self.reused_tokens)


@dataclass(frozen=True, slots=True)
class HotSet:
    """The residency set that an engine runs with."""

    generation: int
    layers: tuple[int, ...]
    hot: NDArray[np.bool_]
    """(L, E)"""


@dataclass(slots=True)
class EngineBook:
    """One engine's counters, and the requests whose share in them is open."""

    ledger: EngineLedger = field(default_factory=EngineLedger)
    work: WorkLedger = field(default_factory=WorkLedger)
    open_requests: set[str] = field(default_factory=set)


class Bookkeeper:
    """Makes records and hands them to `log`. `message_key` keys what is remembered of messages, `session_key` ids."""

    def __init__(self, log: RoutingLog, session_key: bytes, message_key: bytes) -> None:
        self._log = log
        self._session_key = session_key
        self._tracker = SessionTracker(message_key, self._turns_of)

    def identify(self, arrival: Arrival) -> Turn:
        """The place of a request that has just arrived."""
        named = explicit_session(arrival.headers, arrival.request)
        source, session = (named[0], session_hash(self._session_key, named[1])) if named else (None, None)
        return self._tracker.identify(arrival.fingerprint, session, source, arrival.request)

    def settle(
        self,
        arrival: Arrival,
        turn: Turn,
        outcome: Outcome,
        engine: EngineBook | None,
        counters: bytes | None,
        hot: HotSet | None,
        work: EngineWork | None = None,
    ) -> None:
        """Log a request that has ended.

        engine     None for a request that never reached one
        counters   the engine's answer about its route counts after the request, None if there was none
        work       what the engine has done since it was loaded, as it tells after the request
        """
        counts = _take_counts(arrival, outcome, engine, counters)
        new_tokens, output_tokens = _tokens(arrival, outcome, engine, counts)
        taken = _take_path(outcome, engine, work)
        prefix_break = self._tracker.settle(turn, outcome.prompt_tokens, outcome.reused_tokens)
        hot_routes = hot_routes_of(counts, hot)
        self._log.put(
            RequestRecord(
                id=arrival.id,
                fingerprint=arrival.fingerprint,
                session=turn.session,
                source=turn.source,
                turn=turn.number,
                kind=turn.kind,
                dialect=arrival.dialect,
                status=outcome.status,
                started_at=arrival.started_at,
                queue_ms=_ms(outcome.admitted_ms),
                ttft_ms=_ms(ttft_ms(outcome, stream=arrival.stream)),
                tpot_ms=_ms(tpot_ms(outcome, stream=arrival.stream)),
                total_ms=round(outcome.total_ms, 3),
                new_tokens=new_tokens,
                reused_tokens=outcome.reused_tokens,
                output_tokens=output_tokens,
                prefix_break=prefix_break,
                generation=hot.generation if hot else None,
                path=taken.path if taken else None,
                uploaded_bytes=taken.uploaded_bytes if taken else None,
                counts=counts,
                cold_routes=counts.routes - sum(hot_routes) if counts and hot_routes else None,
                coverage_prefill=_share(hot_routes[0], counts.prefill) if counts and hot_routes else None,
                coverage_decode=_share(hot_routes[1], counts.decode) if counts and hot_routes else None,
            )
        )

    def use_session_key(self, key: bytes) -> None:
        """Hash session ids with another key from now on, and forget the sessions in memory."""
        self._session_key = key
        self._tracker.forget()

    def forget_sessions(self) -> None:
        """Forget the sessions in memory; those without an id of their own get another name from now on."""
        self._tracker.forget()

    def session_name(self, value: str) -> str:
        """What the log calls the session that a client names `value`."""
        return session_hash(self._session_key, value)

    def _turns_of(self, fingerprint: str, session: str) -> int:
        if self._log.status().state == "off":
            return 0
        try:
            return reader.turns_of(fingerprint, session, self._log.file)
        except RoutingLogUnavailable as error:
            log.debug("turns_unknown reason=%r", error.message)
            return 0


def ttft_ms(outcome: Outcome, *, stream: bool) -> float | None:
    """Time to the first token as the client saw it, waiting included.

    A whole answer is sent at its end; its first token came when the engine had read the prompt.
    """
    if stream:
        return outcome.first_byte_ms
    if outcome.admitted_ms is None or outcome.prompt_ms is None:
        return None
    return outcome.admitted_ms + outcome.prompt_ms


def tpot_ms(outcome: Outcome, *, stream: bool) -> float | None:
    """Time per output token: the engine's measure, else what the client saw of a stream of two tokens or more."""
    if not outcome.output_tokens:
        return None
    if outcome.decode_ms is not None:
        return outcome.decode_ms / outcome.output_tokens
    if not stream or outcome.first_byte_ms is None or outcome.output_tokens < 2 or outcome.status != "ok":
        return None
    return (outcome.total_ms - outcome.first_byte_ms) / (outcome.output_tokens - 1)


def read_hot_set(generation: int, told: Any) -> HotSet:
    """The engine's answer of /ostinato/residency; no layers, so that no coverage is computed, for anything else."""
    try:
        layers = tuple(int(layer) for layer in told["layers"])
        hot = np.zeros((len(layers), int(told["n_experts"])), np.bool_)
        for row, experts in zip(hot, told["hot"], strict=True):
            row[np.array(experts, np.int64)] = True
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        return HotSet(generation, (), np.zeros((0, 0), np.bool_))
    return HotSet(generation, layers, hot)


def hot_routes_of(counts: RouteCounts | None, hot: HotSet | None) -> tuple[int, int] | None:
    """Prefill and decode routes whose experts were hot; None where either is not known or they do not fit."""
    if counts is None or hot is None or counts.layers != hot.layers or counts.prefill.shape != hot.hot.shape:
        return None
    return int(counts.prefill[hot.hot].sum()), int(counts.decode[hot.hot].sum())


def _take_counts(
    arrival: Arrival, outcome: Outcome, engine: EngineBook | None, counters: bytes | None
) -> RouteCounts | None:
    if engine is None:
        return None
    engine.open_requests.discard(arrival.id)
    if outcome.status == EngineDied.kind:
        engine.ledger.restarted()
        return None
    read = read_engine_counts(counters) if counters is not None else None
    if read is None:
        return None
    engine.ledger.read(read)
    if engine.open_requests:
        return engine.ledger.take_share(outcome.new_tokens, outcome.output_tokens, arrival.k)
    return engine.ledger.take_all()


def _tokens(
    arrival: Arrival, outcome: Outcome, engine: EngineBook | None, counts: RouteCounts | None
) -> tuple[int | None, int | None]:
    """Tokens that were read and written: as the client was told, else, of a request that was alone, as was counted.

    Who breaks an answer off is told nothing, and a session of such requests alone would weigh nothing in planning.
    """
    new_tokens, output_tokens = outcome.new_tokens, outcome.output_tokens
    if counts is None or arrival.k <= 0 or (engine is not None and engine.open_requests):
        return new_tokens, output_tokens
    if new_tokens is None:
        new_tokens = round(counted_tokens(counts.prefill, arrival.k))
    if output_tokens is None:
        output_tokens = round(counted_tokens(counts.decode, arrival.k))
    return new_tokens, output_tokens


def _take_path(outcome: Outcome, engine: EngineBook | None, work: EngineWork | None) -> PathTaken | None:
    if engine is None:
        return None
    if outcome.status == EngineDied.kind:
        engine.work.restarted()
        return None
    return engine.work.take(work, alone=not engine.open_requests)


def _share(hot_routes: int, counts: NDArray[np.int64]) -> float | None:
    total = int(counts.sum())
    return round(hot_routes / total, 6) if total else None


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
