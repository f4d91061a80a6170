"""What a generation did on the sessions since, and whether the set before or the default would do better. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ostinatod.profiles.coverage import coverage
from ostinatod.profiles.rates import Forgetting
from ostinatod.profiles.route_log import SessionRoutes

Mask = NDArray[np.bool_]

JUDGED_SESSIONS = 3
"""Sessions of its own that a generation is judged by; one alone may be unlike the rest."""
WORSE_BY = 0.01
"""Coverage that the generation before would have had more, from which it is returned to."""
WORSE_THAN_DEFAULT_BY = 0.05
"""Coverage that the default set would have had more, from which nobody waits for further sessions."""
DEFAULT_TOKENS = 64
"""Read or written since, from which a set is compared with the default."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Sessions that began after a generation became active."""

    sessions: int
    coverage: float | None
    coverage_before: float | None
    """What the set before would have covered of the same sessions."""
    coverage_default: float | None
    """What the set without any knowledge of sessions would have covered."""
    tokens: int
    """Read or written in these sessions."""
    tpot_ms: float | None
    """Median of the requests that the engine served with this generation."""

    @property
    def is_worse(self) -> bool:
        """Whether the set before should be returned to."""
        if self.sessions < JUDGED_SESSIONS or self.coverage is None or self.coverage_before is None:
            return False
        return self.coverage_before - self.coverage >= WORSE_BY

    @property
    def is_below_default(self) -> bool:
        """Whether it was worse to have learned. A set that was learned from a wild log is recognised by that."""
        if self.tokens < DEFAULT_TOKENS or self.coverage is None or self.coverage_default is None:
            return False
        return self.coverage_default - self.coverage >= WORSE_THAN_DEFAULT_BY

    @property
    def is_before_the_better_default(self) -> bool:
        """Whether the set before would have covered no less than the default."""
        before, default = self.coverage_before, self.coverage_default
        return before is not None and default is not None and before >= default


def measure_effect(
    sessions: Sequence[SessionRoutes],
    since: float,
    hot: Mask,
    before: Mask | None,
    default: Mask,
    tpots_ms: Sequence[float],
    forgetting: Forgetting,
) -> Effect:
    """The effect of the set `hot`, active since then (unix seconds), against the set before it and the default."""
    own = [session for session in sessions if not session.is_merged and session.started_at >= since]
    return Effect(
        sessions=len(own),
        coverage=coverage(own, hot, forgetting).overall if own else None,
        coverage_before=coverage(own, before, forgetting).overall if own and before is not None else None,
        coverage_default=coverage(own, default, forgetting).overall if own else None,
        tokens=sum(session.tokens for session in own),
        tpot_ms=median(tpots_ms) if tpots_ms else None,
    )
