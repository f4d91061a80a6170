"""Borrowed memory in decode, replayed offline to choose its parameters (paper 3.4, "Borrowed memory").

Every CPU use raises an expert's score, which decays over decode steps. The highest-scored experts are uploaded into
free slots; once these are full, a newcomer replaces the lowest-scored borrowed expert only when it scores clearly
higher. An uploaded expert serves from a later token boundary on, and a prefill returns all borrowed slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .errors import CapacityError

Step = Sequence[int]
"""The cold routes of one decode step, each an expert's number within the model."""


@dataclass(frozen=True, slots=True)
class BorrowingRule:
    """How slots of one GPU are lent. Raises CapacityError for values that no rule can have."""

    slots: int
    decay: float
    """Factor on every score per decode step, above 0 and at most 1."""
    hysteresis: float
    """A newcomer replaces a borrowed expert when it scores more than this many times as high; 1 or more."""
    upload_steps: int = 1
    """Decode steps that one upload takes; the expert serves from the step after."""

    def __post_init__(self) -> None:
        if not (self.slots >= 0 and 0 < self.decay <= 1 and self.hysteresis >= 1 and self.upload_steps >= 1):
            raise CapacityError(
                "expected slots of 0 or more, decay above 0 and at most 1, hysteresis and upload_steps of 1 or more, "
                f"found {self}"
            )


@dataclass(frozen=True, slots=True)
class BorrowingOutcome:
    """What a rule would have done on recorded decode steps."""

    steps: int
    cold_routes: int
    """Routes to experts outside the residency set."""
    served: int
    """Of these, served by a borrowed expert."""
    uploads: int
    peak_slots: int

    def saved_ms(self, beta_ms: float, exposed_upload_ms: float) -> float:
        """CPU time that borrowing saves less what uploads make the GPU wait, per decode step."""
        return (self.served * beta_ms - self.uploads * exposed_upload_ms) / self.steps if self.steps else 0.0


def simulate_borrowing(requests: Iterable[Sequence[Step]], rule: BorrowingRule) -> BorrowingOutcome:
    """Replay the decode steps of requests, each of which begins with a prefill that has returned every slot."""
    steps = cold_routes = served = uploads = peak = 0
    scores: dict[int, float] = {}
    for request in requests:
        borrowed: set[int] = set()
        arriving: int | None = None
        ready_at = 0
        for number, step in enumerate(request):
            if arriving is not None and number > ready_at:
                borrowed.add(arriving)
                arriving = None
            steps += 1
            cold_routes += len(step)
            scores = {expert: score * rule.decay for expert, score in scores.items() if score > _FORGOTTEN}
            for expert in step:
                if expert in borrowed:
                    served += 1
                else:
                    scores[expert] = scores.get(expert, 0.0) + 1.0
            if arriving is None and (newcomer := _newcomer(scores, borrowed, rule)) is not None:
                if len(borrowed) == rule.slots:
                    borrowed.remove(min(borrowed, key=lambda expert: (scores.get(expert, 0.0), expert)))
                arriving, ready_at = newcomer, number + rule.upload_steps - 1
                uploads += 1
                peak = max(peak, len(borrowed) + 1)
    return BorrowingOutcome(steps, cold_routes, served, uploads, peak)


def choose_borrowing(
    requests: Sequence[Sequence[Step]],
    candidates: Sequence[BorrowingRule],
    *,
    beta_ms: float,
    exposed_upload_ms: float,
) -> tuple[BorrowingRule, BorrowingOutcome]:
    """The candidate that saves most time on recorded steps; the first of equals.

    Raises CapacityError without candidates.
    """
    if not candidates:
        raise CapacityError("expected at least one rule to choose from, found none")
    outcomes = [(rule, simulate_borrowing(requests, rule)) for rule in candidates]
    return max(outcomes, key=lambda pair: pair[1].saved_ms(beta_ms, exposed_upload_ms))


_FORGOTTEN = 1e-3
"""Scores below this cannot win a slot against one use and are dropped."""


def _newcomer(scores: dict[int, float], borrowed: set[int], rule: BorrowingRule) -> int | None:
    """The expert to upload next, if any."""
    waiting = [(score, -expert) for expert, score in scores.items() if expert not in borrowed]
    if not waiting or not rule.slots:
        return None
    score, negative = max(waiting)
    if len(borrowed) < rule.slots:
        return -negative
    lowest = min(scores.get(expert, 0.0) for expert in borrowed)
    return -negative if score > rule.hysteresis * lowest else None
