"""Borrowed memory in decode: the algorithm, replayed on recorded steps to choose its parameters (paper 3.4).

Memory that only prefill needs is lent to cold experts while a request decodes. For each GPU, with S slots to lend:

+------------------------------------------------------------------------------------------------------------------+
| Scores. Every layer and expert of the GPU has a score. One that decays needs no pass over all experts: a use adds |
| W, and after each decode step W is divided by `decay`; the score is what was added over the present W. When W     |
| exceeds 2^64, all sums and W are multiplied by its inverse. A use is a cold route that the CPU branch computed,   |
| and with `counts_served` also one that a borrowed expert served: then an expert that serves much is not given up  |
| for one that was used lately. Sums outlive requests; nothing else does. Starting scores from learned rates was    |
| tried and gains nothing.                                                                                         |
|                                                                                                                  |
| After each decode step (never between a step's publish and its join):                                            |
|   1. credit = min(credit + uploads_per_step, max(1, uploads_per_step)).                                           |
|   2. While credit >= 1: take the expert with the highest score among those that are cold, not borrowed and not   |
|      on their way; ties go to the lower number. Stop if it scores less than `admission`. With a free slot, upload |
|      it there. Without, compare the borrowed expert with the lowest score: stop unless the newcomer scores more   |
|      than `hysteresis` times as high; else that one stops serving now, and the newcomer is uploaded to its slot.  |
|      credit -= 1.                                                                                                |
|   3. What has arrived serves from the next token boundary on: the index tables of both branches switch together,  |
|      between two passes. An upload takes 1 / uploads_per_step steps, at least one.                                |
|                                                                                                                  |
| Before a prefill the slots are returned that it stages uploads in, the first ones: tables first, then the memory. |
| Uploads on their way are waited for or dropped. A free slot is taken from the end. credit starts at 1.            |
|                                                                                                                  |
| uploads_per_step = share * link bandwidth * time of a decode step / bytes of an expert. The share of the link     |
| that borrowing may take is one in four: the rest is for reading in place. Where CPU and link share the bandwidth  |
| of host memory, an upload costs as much of it as the CPU's computing one route: `hysteresis` keeps out an expert  |
| that will not be used again. `admission` was found to add nothing to that.                                       |
+------------------------------------------------------------------------------------------------------------------+

`default_rule` has what was chosen; docs/learning.md and benchmarks/results say from what.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .errors import CapacityError

LENT_SHARE = 1 / 8
"""Of a GPU's memory for experts, behind a learned set."""
LENT_SHARE_UNLEARNED = 3 / 8
"""While nobody has learned which experts a session will use, memory serves better lent: the same replay."""

Step = Sequence[int]
"""The cold routes of one decode step, each an expert's number within the model."""

_LARGEST_WEIGHT = 2.0**64


@dataclass(frozen=True, slots=True)
class BorrowingRule:
    """How slots of one GPU are lent. Raises CapacityError for values that no rule can have."""

    slots: int
    decay: float
    """Factor on every score per decode step, above 0 and at most 1."""
    hysteresis: float
    """A newcomer replaces a borrowed expert when it scores more than this many times as high; 1 or more."""
    admission: float = 0.0
    """Least score of a newcomer, also for a free slot."""
    uploads_per_step: float = 1.0
    """What the link has time for; below 1 an upload takes several steps."""
    counts_served: bool = False
    """Whether serving raises a borrowed expert's score too."""
    returned: int | None = None
    """Slots, from the first, that a prefill takes back; None for all."""

    def __post_init__(self) -> None:
        is_sound = self.slots >= 0 and 0 < self.decay <= 1 and self.hysteresis >= 1 and (self.returned or 0) >= 0
        if not (is_sound and self.admission >= 0 and self.uploads_per_step > 0):
            raise CapacityError(
                "expected slots, returned and admission of 0 or more, decay above 0 and at most 1, hysteresis of 1 or "
                f"more and uploads_per_step above 0, found {self}"
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
        """CPU time that borrowing saves less what uploads make the step wait, per decode step."""
        return (self.served * beta_ms - self.uploads * exposed_upload_ms) / self.steps if self.steps else 0.0


class _Slots:
    """The lent slots of one GPU and the scores of its experts."""

    def __init__(self, rule: BorrowingRule) -> None:
        self._rule = rule
        self._sums: dict[int, float] = {}
        self._weight = 1.0
        self._credit = 1.0
        self._steps = 0
        """Of the request."""
        self._serves_from: dict[int, int] = {}
        """By borrowed expert, those on their way included: the step from which it serves."""
        self._slot_of: dict[int, int] = {}
        self._free = list(range(rule.slots))
        """In ascending order."""
        self.uploads = 0
        self.peak = 0

    def begin_request(self) -> None:
        """A prefill has returned its slots, and those of uploads on their way."""
        returned = self._rule.slots if self._rule.returned is None else self._rule.returned
        for expert, ready_at in list(self._serves_from.items()):
            if self._slot_of[expert] < returned or ready_at > self._steps:
                self._take_back(expert)
        self._serves_from = dict.fromkeys(self._serves_from, 0)
        self._free.sort()
        self._credit = 1.0
        self._steps = 0

    def _take_back(self, expert: int) -> None:
        del self._serves_from[expert]
        self._free.append(self._slot_of.pop(expert))

    def step(self, number: int, routes: Step) -> int:
        """One decode step of the request; how many of its cold routes were served."""
        served = 0
        for expert in routes:
            is_served = self._serves_from.get(expert, number + 1) <= number
            served += is_served
            if not is_served or self._rule.counts_served:
                self._sums[expert] = self._sums.get(expert, 0.0) + self._weight
        rate = self._rule.uploads_per_step
        self._credit = min(self._credit + (rate if number else 0.0), max(1.0, rate))
        ready_at = number + max(1, math.ceil(1 / rate))
        while self._credit >= 1 and self._lend(ready_at):
            self._credit -= 1
        self._decay()
        self._steps = number + 1
        return served

    def _lend(self, ready_at: int) -> bool:
        """Start one upload, if any is worth it."""
        borrowed = self._serves_from
        waiting = [(value, -expert) for expert, value in self._sums.items() if expert not in borrowed]
        if not waiting or not self._rule.slots:
            return False
        best, negative = max(waiting)
        if best < self._rule.admission * self._weight:
            return False
        if len(borrowed) == self._rule.slots:
            lowest = min(borrowed, key=lambda expert: (self._sums[expert], expert))
            if best <= self._rule.hysteresis * self._sums[lowest]:
                return False
            self._take_back(lowest)
        borrowed[-negative] = ready_at
        self._slot_of[-negative] = self._free.pop()
        self.uploads += 1
        self.peak = max(self.peak, len(borrowed))
        return True

    def _decay(self) -> None:
        self._weight /= self._rule.decay
        if self._weight > _LARGEST_WEIGHT:
            self._sums = {expert: value / self._weight for expert, value in self._sums.items()}
            self._weight = 1.0


def simulate_borrowing(requests: Iterable[Sequence[Step]], rule: BorrowingRule) -> BorrowingOutcome:
    """Replay the decode steps of requests, each of which begins with a prefill that takes back slots."""
    steps = cold_routes = served = 0
    slots = _Slots(rule)
    for request in requests:
        slots.begin_request()
        for number, routes in enumerate(request):
            steps += 1
            cold_routes += len(routes)
            served += slots.step(number, routes)
    return BorrowingOutcome(steps, cold_routes, served, slots.uploads, slots.peak)


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


def default_rule(slots: int, uploads: float) -> BorrowingRule:
    """The rule that was best on recorded sessions, for the slots that there are and the uploads that a step has time
    for.
    """
    return BorrowingRule(slots, decay=0.97, hysteresis=2.0, uploads_per_step=uploads, counts_served=True)


def uploads_per_step(link_gbps: float, step_ms: float, expert_bytes: int, share: float = 0.25) -> float:
    """What a link has time for: `share` of 1e9 bytes per second for a decode step's time, in experts."""
    return share * link_gbps * step_ms * 1e6 / expert_bytes
