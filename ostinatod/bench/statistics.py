"""What the turns of a comparison say: totals, waits by new tokens, intervals (paper 4.1-4.4).

Total request time is the sum of all requests' times. TTFT runs from the request to its first output token, TPOT between
the first and the last. Settings are compared turn by turn, on turns that both have. Intervals are 95 % bootstrap
intervals over sessions, since turns of one session are not independent; one session has none.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ostinatod.bench.results import TurnResult
from ostinatod.bench.sessions import KINDS, Kind

BUCKETS: tuple[tuple[int, int | None], ...] = ((1, 128), (128, 256), (256, 512), (512, 1024), (1024, None))
"""New tokens of a turn, from and below, as the paper's Figure 7a groups them."""

RESAMPLES = 2000
LEVELS = (2.5, 97.5)
SEED = 5

Floats = NDArray[np.float64]
Pair = tuple[TurnResult, TurnResult]
"""The same turn under a setting and under the base."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval; no interval from fewer than two sessions."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """Some turns: how many, and their median TTFT, milliseconds."""

    turns: int
    ttft_ms: float | None


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """One session under one setting, milliseconds: the sum of its requests, and medians over its turns."""

    turns: int
    total_ms: float
    ttft_after_tool_ms: float | None
    tpot_ms: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """One setting. Times are milliseconds; medians are over turns."""

    setting: str
    sessions: Mapping[str, float]
    """Total request time of each."""
    by_session: Mapping[str, SessionTimes]
    total_ms: float
    prefill_ms: float
    decode_ms: float
    turns: int
    by_kind: Mapping[Kind, Group]
    by_new_tokens: tuple[Group, ...]
    """Turns after a tool output, in `BUCKETS`."""
    tpot_ms: float | None
    coverage_prefill: float | None
    """Share of the routes whose experts were hot."""
    coverage_decode: float | None


@dataclass(frozen=True, slots=True)
class Versus:
    """How many times as long a setting takes as the base, over the turns that both have.

    total           of the sums of all request times
    ttft_after_tool, tpot, by_new_tokens   medians of the ratios turn by turn
    """

    setting: str
    base: str
    turns: int
    sessions: int
    sessions_won: int
    """Where the base is faster."""
    saved: Estimate
    """Share of the setting's time that the base saves."""
    saved_by_session: Mapping[str, float]
    total: Estimate
    ttft_after_tool: Estimate | None
    tpot: Estimate | None
    by_new_tokens: tuple[Estimate | None, ...]
    same_token: float | None
    """Share of the turns in which both would have said the same first."""


def median_turns(turns: Sequence[TurnResult]) -> list[TurnResult]:
    """Repeated turns as one, with the median of each time."""
    groups: dict[tuple[str, str, int], list[TurnResult]] = defaultdict(list)
    for turn in turns:
        groups[turn.setting, turn.session, turn.turn].append(turn)
    return [
        replace(
            group[0],
            ttft_ms=statistics.median(turn.ttft_ms for turn in group),
            tpot_ms=_median([turn.tpot_ms for turn in group if turn.tpot_ms is not None]),
            total_ms=statistics.median(turn.total_ms for turn in group),
        )
        for group in groups.values()
    ]


def summarize(turns: Sequence[TurnResult], setting: str) -> Summary:
    """The turns of one setting, repeats counted once."""
    own = median_turns([turn for turn in turns if turn.setting == setting])
    of_session: dict[str, list[TurnResult]] = defaultdict(list)
    for turn in own:
        of_session[turn.session].append(turn)
    by_session = {name: _session_times(found) for name, found in of_session.items()}
    sessions = {name: times.total_ms for name, times in by_session.items()}
    after_tool = [turn for turn in own if turn.kind == "after_tool"]
    prefill_ms = sum(turn.ttft_ms for turn in own)
    total_ms = sum(sessions.values())
    return Summary(
        setting=setting,
        sessions=sessions,
        by_session=by_session,
        total_ms=total_ms,
        prefill_ms=prefill_ms,
        decode_ms=total_ms - prefill_ms,
        turns=len(own),
        by_kind={kind: _group([turn for turn in own if turn.kind == kind]) for kind in KINDS},
        by_new_tokens=tuple(_group([turn for turn in after_tool if in_bucket(turn, bucket)]) for bucket in BUCKETS),
        tpot_ms=_tpot_ms(own),
        coverage_prefill=_share(own, "prefill_hot_routes", "prefill_routes"),
        coverage_decode=_share(own, "decode_hot_routes", "decode_routes"),
    )


def versus(turns: Sequence[TurnResult], setting: str, base: str) -> Versus | None:
    """A setting against the base; None where they have no turn in common."""
    every = median_turns(turns)
    of_base = {(turn.session, turn.turn): turn for turn in every if turn.setting == base}
    pairs = [
        (turn, of_base[turn.session, turn.turn])
        for turn in every
        if turn.setting == setting and (turn.session, turn.turn) in of_base
    ]
    if not pairs:
        return None
    by_session: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_session[pair[0].session].append(pair)
    sessions = list(by_session.values())
    totals = [np.array([(a.total_ms, b.total_ms) for a, b in session]) for session in sessions]
    told = [(a, b) for a, b in pairs if a.likely_token is not None and b.likely_token is not None]
    return Versus(
        setting=setting,
        base=base,
        turns=len(pairs),
        sessions=len(sessions),
        sessions_won=sum(_total_ratio(session) > 1 for session in totals),
        saved_by_session={
            name: 1 - 1 / _total_ratio(session) for name, session in zip(by_session, totals, strict=True)
        },
        saved=_bootstrapped(totals, lambda drawn: 1 - 1 / _total_ratio(drawn)),
        total=_bootstrapped(totals, _total_ratio),
        ttft_after_tool=_ttft_ratio(sessions),
        tpot=_median_ratio(
            [[(a.tpot_ms, b.tpot_ms) for a, b in session if a.tpot_ms and b.tpot_ms] for session in sessions]
        ),
        by_new_tokens=tuple(_ttft_ratio(sessions, bucket) for bucket in BUCKETS),
        same_token=sum(a.likely_token == b.likely_token for a, b in told) / len(told) if told else None,
    )


def in_bucket(turn: TurnResult, bucket: tuple[int, int | None]) -> bool:
    """Whether a turn's new tokens are in a bucket."""
    least, below = bucket
    return turn.new >= least and (below is None or turn.new < below)


def _total_ratio(times: Floats) -> float:
    return float(times[:, 0].sum() / times[:, 1].sum())


def _ttft_ratio(sessions: Sequence[Sequence[Pair]], bucket: tuple[int, int | None] = (0, None)) -> Estimate | None:
    return _median_ratio(
        [
            [(a.ttft_ms, b.ttft_ms) for a, b in session if a.kind == "after_tool" and in_bucket(a, bucket)]
            for session in sessions
        ]
    )


def _median_ratio(sessions: Sequence[Sequence[tuple[float, float]]]) -> Estimate | None:
    """The median of the ratios of pairs."""
    ratios = [np.array([a / b for a, b in pairs]) for pairs in sessions if pairs]
    return _bootstrapped(ratios, lambda drawn: float(np.median(drawn))) if ratios else None


def _bootstrapped(sessions: Sequence[Floats], measure: Callable[[Floats], float]) -> Estimate:
    """`measure` of all sessions, and between which values it lies when sessions are drawn again with replacement."""
    value = measure(np.concatenate(sessions))
    if len(sessions) < 2:
        return Estimate(value, None, None)
    rng = np.random.default_rng(SEED)
    draws = rng.integers(0, len(sessions), (RESAMPLES, len(sessions)))
    low, high = np.percentile([measure(np.concatenate([sessions[i] for i in draw])) for draw in draws], LEVELS)
    return Estimate(value, float(low), float(high))


def _session_times(turns: Sequence[TurnResult]) -> SessionTimes:
    return SessionTimes(
        turns=len(turns),
        total_ms=sum(turn.total_ms for turn in turns),
        ttft_after_tool_ms=_median([turn.ttft_ms for turn in turns if turn.kind == "after_tool"]),
        tpot_ms=_tpot_ms(turns),
    )


def _tpot_ms(turns: Sequence[TurnResult]) -> float | None:
    return _median([turn.tpot_ms for turn in turns if turn.tpot_ms is not None])


def _group(turns: Sequence[TurnResult]) -> Group:
    return Group(len(turns), _median([turn.ttft_ms for turn in turns]))


def _share(turns: Sequence[TurnResult], part: str, whole: str) -> float | None:
    counted = [(getattr(turn, part), getattr(turn, whole)) for turn in turns if getattr(turn, whole)]
    return sum(hot for hot, _ in counted) / sum(routes for _, routes in counted) if counted else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
