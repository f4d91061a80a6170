"""How often each expert is selected, learned from sessions: the rates that planning ranks by (paper 3.1 step 1).

Every session counts as one: its routes are normalised first, so that a long or a wild one cannot outweigh the others,
and its weight halves with every `half_life_sessions` newer ones. A short session counts in proportion to its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import CapacityError
from .route_log import SessionRoutes

Floats = NDArray[np.float64]

_REMEMBERED_HALF_LIVES = 10
"""All sessions before these weigh 2^-10 of all, together."""


@dataclass(frozen=True, slots=True)
class Forgetting:
    """What a session's routes weigh."""

    half_life_sessions: float = 8.0
    """Newer sessions after which a session weighs half."""
    prefill_weight: float = 0.07
    """Weight of a route of prefill, where one of decode weighs 1.

    A cold route costs the CPU 0.184 ms in decode (paper 3.2). In short prefills a token costs 6.0 ms with six cold
    routes in each of 43 layers and 3.2 ms with 0.94 (paper 4.4): 2.8 ms for 218 routes, 0.013 ms each.
    """
    whole_session_tokens: int = 256
    """Shorter sessions weigh in proportion."""

    def __post_init__(self) -> None:
        if not (self.half_life_sessions > 0 and self.prefill_weight >= 0 and self.whole_session_tokens > 0):
            raise CapacityError(
                "expected half_life_sessions and whole_session_tokens above 0 and prefill_weight of 0 or more, "
                f"found {self.half_life_sessions}, {self.whole_session_tokens}, {self.prefill_weight}"
            )

    @property
    def decay(self) -> float:
        """Weight of a session relative to the next newer one."""
        return float(0.5 ** (1.0 / self.half_life_sessions))


def remembered(sessions: Sequence[SessionRoutes], forgetting: Forgetting) -> tuple[SessionRoutes, ...]:
    """The sessions that still have a say, the oldest first: those before them together would weigh next to nothing."""
    newest = math.ceil(_REMEMBERED_HALF_LIVES * forgetting.half_life_sessions)
    return in_order(sessions)[-newest:]


def in_order(sessions: Sequence[SessionRoutes]) -> tuple[SessionRoutes, ...]:
    """Sessions by age, the oldest first; merged old ones lead."""
    return tuple(sorted(sessions, key=lambda item: (not item.is_merged, item.last_at)))


def session_shares(session: SessionRoutes, forgetting: Forgetting) -> Floats:
    """(L, E) share of each expert in its layer's routes of one session; rows without a route are 0.

    Phases are normalised apart before they are weighed together, by the tokens of each: the last layer computes fewer
    tokens of a prefill than the others.
    """
    tokens = (session.new_tokens, session.output_tokens)
    if not any(tokens):
        # Of an answer that was broken off routes are known and tokens are not: the busiest layer has k for each.
        prefill, decode = (int(np.max(counts.sum(axis=1), initial=0)) for counts in (session.prefill, session.decode))
        tokens = (prefill, decode)
    weights = (forgetting.prefill_weight * tokens[0], float(tokens[1]))
    total = np.zeros(session.prefill.shape, np.float64)
    for counts, weight in zip((session.prefill, session.decode), weights, strict=True):
        total += weight * row_shares(counts)
    return row_shares(total)


def row_shares(counts: NDArray[np.int64] | Floats) -> Floats:
    """(L, E) each row divided by its sum; rows of zeros stay."""
    values = counts.astype(np.float64)
    sums = values.sum(axis=1, keepdims=True)
    shares: Floats = np.divide(values, sums, out=np.zeros_like(values), where=sums > 0)
    return shares


def session_weights(sessions: Sequence[SessionRoutes], forgetting: Forgetting) -> Floats:
    """(S,) weights of sessions in order of age, the oldest first; the newest whole one weighs 1.

    Merged old sessions weigh as all that would have come before them: the rest of the geometric series.
    """
    decay = forgetting.decay
    weights = []
    for age, session in enumerate(reversed(sessions)):
        whole = min(1.0, session.tokens / forgetting.whole_session_tokens)
        weights.append(decay**age * (1.0 / (1.0 - decay) if session.is_merged else whole))
    return np.array(weights[::-1], np.float64)


def learned_rates(
    sessions: Sequence[SessionRoutes], k: int, forgetting: Forgetting, prior: Floats | None = None
) -> Floats:
    """(L, E) rho: expected routes to each expert per token; a layer's rates add up to k where it has any.

    prior  (L, E) rates known before the first session, such as an imatrix's; weighs as one session before all others

    Raises CapacityError without sessions and prior, or where their shapes differ.
    """
    ordered = in_order(sessions)
    shapes = {session.prefill.shape for session in ordered} | (set() if prior is None else {prior.shape})
    if not shapes:
        raise CapacityError("expected sessions or a prior to learn from, found none")
    if len(shapes) > 1:
        raise CapacityError(f"expected the same layers and experts in all sessions, found {sorted(shapes)}")
    total = np.zeros(shapes.pop(), np.float64)
    if prior is not None:
        total += forgetting.decay ** len(ordered) * row_shares(prior)
    for session, weight in zip(ordered, session_weights(ordered, forgetting), strict=True):
        total += weight * session_shares(session, forgetting)
    # Normalised last: a layer without routes in some session is averaged over the sessions that have some.
    return row_shares(total) * k
