"""What a generation did on the sessions since, and whether the set before or the default would do better. Pure.

A log can hold sessions that are no one's work. However well such a session is served, it never makes up for another:
sessions are compared with the default one by one, and those below it are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np
from numpy.typing import NDArray

from ostinatod.learning.generations import Generation
from ostinatod.profiles.coverage import coverage
from ostinatod.profiles.heldout import COMPARED_TOKENS
from ostinatod.profiles.rates import Forgetting, in_order
from ostinatod.profiles.route_log import SessionRoutes

Mask = NDArray[np.bool_]

JUDGED_SESSIONS = 3
"""Sessions of its own that a generation is judged by against the set before; one alone may be unlike the rest."""
WORSE_BY = 0.01
"""Coverage that the generation before would have had more, from which it is returned to."""
WORSE_THAN_DEFAULT_BY = 0.05
"""Coverage that the default set would have had more of a session, from which that counts as below the default."""
NEWEST_SESSIONS = 4
"""That a set is compared with the default on: before it is changed to on all, in use on its own."""
LEFT_AFTER = 2
"""Of these below the default, after which a set is left. After one, every wild session would cost the learned set; two
among more would let fewer wild sessions do that, and two among fewer would let them hide the user's own."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The sessions that a set served below the default, among the newest four of its own."""

    below: int
    among: int
    coverage: float | None
    """Of those below."""
    coverage_default: float | None
    """What the set without any knowledge of sessions would have covered of those."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a generation did in the sessions of 64 tokens or more that began under it."""

    sessions: int
    coverage: float | None
    coverage_before: float | None
    """What the set before would have covered of the same sessions."""
    shortfall: Shortfall
    is_before_safe: bool
    """Whether there is a set before that `is_safe`."""
    tpot_ms: float | None
    """Median of the requests that the engine served with this generation."""

    @property
    def is_worse(self) -> bool:
        """Whether the set before should be returned to."""
        if self.sessions < JUDGED_SESSIONS or self.coverage is None or self.coverage_before is None:
            return False
        return self.is_before_safe and self.coverage_before - self.coverage >= WORSE_BY


def measure_effect(
    sessions: Sequence[SessionRoutes],
    active: Generation,
    hot: Mask,
    before: Mask | None,
    default: Mask,
    tpots_ms: Sequence[float],
    forgetting: Forgetting,
) -> Effect:
    """The effect of the active generation, whose set is `hot`, against the set before it and the default."""
    own = [session for session in sessions if not session.is_merged and _is_of(active, session)]
    return Effect(
        sessions=len(own),
        coverage=coverage(own, hot, forgetting).overall if own else None,
        coverage_before=coverage(own, before, forgetting).overall if own and before is not None else None,
        shortfall=_shortfall(own, hot, default, forgetting),
        is_before_safe=before is not None and is_safe(sessions, before, default, forgetting),
        tpot_ms=median(tpots_ms) if tpots_ms else None,
    )


def _is_of(active: Generation, session: SessionRoutes) -> bool:
    """Whether a session began under a generation, and is long enough to say something about it.

    The first session of all begins before the first set, which is made when its model loads. A set that knows no
    session can be judged by such a one, too.
    """
    knows_none = active.source in ("day0", "imatrix")
    since = session.last_at if knows_none else session.started_at
    return since >= active.created_at and session.tokens >= COMPARED_TOKENS


def is_safe(sessions: Sequence[SessionRoutes], hot: Mask, default: Mask, forgetting: Forgetting) -> bool:
    """Whether a set would have served none of the newest four sessions below the default."""
    return not any(_is_below(pair) for pair in _compared_newest(sessions, hot, default, forgetting))


def left_after(history: Sequence[Generation]) -> int:
    """Sessions below the default after which the active set is left, given all generations, the newest first.

    One is enough for what was learned from a single session, and for what follows on going back. Raises StopIteration
    where no generation is active.
    """
    at, active = next((number, item) for number, item in enumerate(history) if item.state == "active")
    replaced = next((item for item in history[at + 1 :] if item.state == "superseded"), None)
    follows_return = active.source == "undo" or (replaced is not None and replaced.source == "undo")
    return 1 if follows_return or active.sessions <= 1 else LEFT_AFTER


def _shortfall(own: Sequence[SessionRoutes], hot: Mask, default: Mask, forgetting: Forgetting) -> Shortfall:
    newest = _compared_newest(own, hot, default, forgetting)
    below = [pair for pair in newest if _is_below(pair)]
    return Shortfall(
        below=len(below),
        among=len(newest),
        coverage=mean(covered for covered, _ in below) if below else None,
        coverage_default=mean(by_default for _, by_default in below) if below else None,
    )


def _is_below(pair: tuple[float, float]) -> bool:
    covered, by_default = pair
    return by_default - covered >= WORSE_THAN_DEFAULT_BY


def _compared_newest(
    sessions: Sequence[SessionRoutes], hot: Mask, default: Mask, forgetting: Forgetting
) -> list[tuple[float, float]]:
    """Coverage by a set and by the default of the newest four sessions that are long enough, each alone."""
    long_enough = [item for item in in_order(sessions) if not item.is_merged and item.tokens >= COMPARED_TOKENS]
    return [
        (coverage([item], hot, forgetting).overall, coverage([item], default, forgetting).overall)
        for item in long_enough[-NEWEST_SESSIONS:]
    ]
