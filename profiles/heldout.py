"""How good plans are on sessions they have not seen.

Sessions come one after the other, so they are held out that way too: each of the newest is predicted by a plan made
from the sessions before it. That is what applying a plan means for the session that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .coverage import Coverage, coverage, mean_shares, random_coverage
from .planner import ExpertPlaces, plan_hot, spread_evenly
from .rates import Forgetting, in_order, learned_rates
from .route_log import SessionRoutes

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

COMPARED_TOKENS = 64
"""Read or written in a session, from which sets are compared on it: a greeting says nothing about them."""
MAX_HELD_OUT = 8
HELD_OUT_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Coverage of the newest sessions by four sets of the same size."""

    sessions: int
    learned: Coverage
    """Each session served by the plan made before it."""
    hindsight: Coverage
    """The one set that is best for these sessions, known only afterwards: no static set does better."""
    uniform: float
    """Of a random set."""


def held_out(sessions: Sequence[SessionRoutes]) -> tuple[SessionRoutes, ...]:
    """The newest quarter, at least one, at most `MAX_HELD_OUT`, never all; oldest first.

    Sessions of fewer than `COMPARED_TOKENS` are passed over, unless there are no others.
    """
    ordered = in_order(sessions)
    return tuple(ordered[place] for place in _held_out_places(ordered))


def _held_out_places(ordered: Sequence[SessionRoutes]) -> list[int]:
    own = [place for place, session in enumerate(ordered) if not session.is_merged]
    places = [place for place in own if ordered[place].tokens >= COMPARED_TOKENS] or own
    # Something has to come before the first of them: another such session, or what was merged.
    most = len(places) - (len(own) == len(ordered))
    count = min(MAX_HELD_OUT, max(1, round(HELD_OUT_SHARE * len(places))), max(0, most))
    return places[len(places) - count :]


def evaluate(
    sessions: Sequence[SessionRoutes],
    places: ExpertPlaces,
    pool_bytes: Sequence[int],
    k: int,
    forgetting: Forgetting,
    prior: Floats | None = None,
) -> HeldOut | None:
    """Learning on the sessions before each held-out one. None where nothing comes before the only session.

    prior  (L, E) rates known before the first session
    """
    ordered = in_order(sessions)
    tested_at = _held_out_places(ordered)
    if not tested_at:
        return None
    tested = [ordered[place] for place in tested_at]
    results = []
    for place, session in zip(tested_at, tested, strict=True):
        before = ordered[:place]
        hot = spread_evenly(places, pool_bytes)
        if before or prior is not None:
            rho = learned_rates(before, k, forgetting, prior)
            # Without a rate, no session before had a say.
            hot = plan_hot(rho, places, pool_bytes) if rho.any() else hot
        results.append(coverage([session], hot, forgetting))
    best = plan_hot(mean_shares(tested, forgetting), places, pool_bytes)
    return HeldOut(
        sessions=len(tested),
        learned=_mean(results),
        hindsight=coverage(tested, best, forgetting),
        uniform=random_coverage(best),
    )


def _mean(results: Sequence[Coverage]) -> Coverage:
    def of(phase: str) -> float | None:
        known = [value for result in results if (value := getattr(result, phase)) is not None]
        return float(np.mean(known)) if known else None

    return Coverage(float(np.mean([result.overall for result in results])), of("prefill"), of("decode"))
