"""What to keep hot now: a proposal from the sessions that were logged, with its reasons. Pure.

Compares by held-out coverage, each of the newest sessions served by a plan made before it (`profiles.heldout`). The
running set is judged on the same sessions; where it has seen them, that favours the running set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ostinatod.learning.effect import NEWEST_SESSIONS, is_safe
from ostinatod.learning.timing import NOTHING_MEASURED, Timing
from ostinatod.profiles.borrowing import LENT_SHARE
from ostinatod.profiles.coverage import Coverage, coverage
from ostinatod.profiles.heldout import COMPARED_TOKENS, HeldOut, evaluate, held_out
from ostinatod.profiles.planner import ExpertPlaces, moved, plan_hot, spread_evenly
from ostinatod.profiles.rates import Forgetting, learned_rates, remembered
from ostinatod.profiles.route_log import SessionRoutes, total_counts
from ostinatod.profiles.skew import Skew, check_skew
from ostinatod.profiles.step_time import StepTime

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PlanningInput:
    """Everything that a plan depends on."""

    places: ExpertPlaces
    k: int
    pool_bytes: tuple[int, ...]
    """Memory for hot experts of each GPU."""
    sessions: tuple[SessionRoutes, ...]
    running: Mask | None
    """The set in use; None where the engine runs without one."""
    forgetting: Forgetting
    prior: Floats | None = None
    """(L, E) counts known before the first session."""
    timing: Timing = NOTHING_MEASURED
    """As measured; without, times are not predicted."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A set to change to, and what it is expected to do. Coverage is a share of routes."""

    hot: Mask
    hot_experts: int
    moved: int
    coverage_now: float | None
    """Of the running set on the held-out sessions; None without one, or without sessions to compare on."""
    coverage_held_out: float | None
    coverage_uniform: float
    coverage_hindsight: float | None
    cold_routes_per_token_now: float | None
    cold_routes_per_token: float
    tpot_ms_now: float | None
    """Expected of the running set on the held-out sessions; None where nothing tells what a cold route costs."""
    tpot_ms_predicted: float | None
    """Expected of this set."""
    tpot_ms_margin: float | None
    """Standard error of that."""
    is_safe: bool
    """Whether it would have served none of the newest sessions below the set without any learning."""
    reasons: tuple[str, ...]

    @property
    def gain(self) -> float | None:
        """Coverage to be won; None where it cannot be compared."""
        if self.coverage_now is None or self.coverage_held_out is None:
            return None
        return self.coverage_held_out - self.coverage_now


@dataclass(frozen=True, slots=True)
class Plan:
    """The state of learning of one model. No proposal where there is nothing better to propose."""

    sessions: int
    """That it was learned from: the newest that still have a say."""
    skew: Skew
    proposal: Proposal | None
    timing: Timing = NOTHING_MEASURED
    reasons: tuple[str, ...] = ()
    """Why there is this proposal or none, in sentences."""


def day_zero(places: ExpertPlaces, pool_bytes: Sequence[int], prior: Floats | None, k: int) -> Mask:
    """The set before the first session: by an imatrix's counts where there are some, else spread evenly."""
    if prior is None:
        return spread_evenly(places, pool_bytes)
    return plan_hot(learned_rates((), k, Forgetting(), prior), places, pool_bytes)


def make_plan(given: PlanningInput) -> Plan:
    """The skew of all logged routes, and the set learned from them where it differs from the running one.

    Raises CapacityError where the sessions do not fit the model.
    """
    hot_share = _hot_share(given)
    if not given.sessions:
        counts = np.zeros((len(given.places.gpu), max(given.places.n_experts)), np.int64)
        skew = check_skew(counts, hot_share)
        until_then = "the experts are spread evenly" if given.prior is None else "counts of an imatrix decide"
        reasons = (skew.sentence, f"Until there is a session, {until_then}.", *given.timing.reasons())
        return Plan(0, skew, None, given.timing, reasons)
    given = replace(given, sessions=remembered(given.sessions, given.forgetting))
    prefill, decode = total_counts(given.sessions)
    skew = check_skew(prefill + decode, hot_share)
    rho = learned_rates(given.sessions, given.k, given.forgetting, given.prior)
    hot = plan_hot(rho, given.places, given.pool_bytes)
    seen = _compare(given)
    # Sessions whose tokens nobody told weigh nothing: without another they say nothing about any expert.
    if not (rho.any() and hot.any()):
        return Plan(len(given.sessions), skew, None, given.timing, _reasons(given, seen, skew))
    if given.running is not None and bool((hot == given.running).all()):
        reasons = (*_reasons(given, seen, skew), "It is the set that would be planned now.")
        return Plan(len(given.sessions), skew, None, given.timing, reasons)
    proposal = _proposal(given, hot, skew, seen)
    return Plan(len(given.sessions), skew, proposal, given.timing, proposal.reasons)


@dataclass(frozen=True, slots=True)
class _Compared:
    """Sets on sessions that they have not seen."""

    held_out: HeldOut | None
    """None with one session."""
    now: Coverage | None
    """Of the running set, on the same sessions; None without one."""


def _compare(given: PlanningInput) -> _Compared:
    tested = held_out(given.sessions) or given.sessions
    return _Compared(
        held_out=evaluate(given.sessions, given.places, given.pool_bytes, given.k, given.forgetting, given.prior),
        now=None if given.running is None else coverage(tested, given.running, given.forgetting),
    )


def _proposal(given: PlanningInput, hot: Mask, skew: Skew, seen: _Compared) -> Proposal:
    n_layers = len(given.places.gpu)
    learned = seen.held_out.learned if seen.held_out else None
    expected = learned or coverage(given.sessions, hot, given.forgetting)
    cold_now = seen.now.cold_routes_per_token(n_layers, given.k) if seen.now else None
    cold_then = expected.cold_routes_per_token(n_layers, given.k)
    step_time = given.timing.step_time
    then_time = _with_memory_lent_by(hot, given)
    default = day_zero(given.places, given.pool_bytes, given.prior, given.k)
    safe = is_safe(given.sessions, hot, default, given.forgetting)
    return Proposal(
        hot=hot,
        hot_experts=int(hot.sum()),
        moved=moved(given.running, hot),
        coverage_now=seen.now.overall if seen.now else None,
        coverage_held_out=learned.overall if learned else None,
        coverage_uniform=float(hot.mean()),
        coverage_hindsight=seen.held_out.hindsight.overall if seen.held_out else None,
        cold_routes_per_token_now=cold_now,
        cold_routes_per_token=cold_then,
        tpot_ms_now=step_time.tpot_ms(cold_now) if step_time and cold_now is not None else None,
        tpot_ms_predicted=then_time.tpot_ms(cold_then) if then_time else None,
        tpot_ms_margin=then_time.margin_ms(cold_then) if then_time else None,
        is_safe=safe,
        reasons=_reasons(given, seen, skew, safe=safe),
    )


def _with_memory_lent_by(hot: Mask, given: PlanningInput) -> StepTime | None:
    """The step time under another set than the running one, which leaves other memory to be lent."""
    step_time = given.timing.step_time
    if step_time is None or step_time.cost is None or given.running is None:
        return step_time
    memory = sum(given.pool_bytes) / (1 - LENT_SHARE)
    # What is lent whatever is hot is the least; the room may have been another when the running set was made.
    now, then = (max(LENT_SHARE * memory, memory - given.places.hot_bytes(mask)) for mask in (given.running, hot))
    return replace(step_time, cost=step_time.cost.with_memory_lent(then / now)) if now > 0 else step_time


def _reasons(given: PlanningInput, seen: _Compared, skew: Skew, *, safe: bool = True) -> tuple[str, ...]:
    reasons = [skew.sentence]
    if (result := seen.held_out) is None:
        reasons.append(
            f"There is one session of {COMPARED_TOKENS} tokens or more so far; the next shows how well it predicts."
        )
    else:
        reasons.append(
            f"On the newest {result.sessions} session{'s' * (result.sessions != 1)}, sets learned from the sessions "
            f"before cover {result.learned.overall:.1%} of the routes; a random set of the same size covers "
            f"{result.uniform:.1%}, the best set in hindsight {result.hindsight.overall:.1%}."
        )
    if seen.now is not None:
        reasons.append(
            f"The set in use covers {seen.now.overall:.1%} of the same routes; where it was learned from these too, "
            "that favours it."
        )
    if not safe:
        reasons.append(
            f"One of the newest {NEWEST_SESSIONS} sessions would have been covered far less than by the set without "
            "any learning, so this one is not applied by itself."
        )
    if given.prior is not None:
        reasons.append("Counts of an imatrix stand in for one session before the first.")
    return (*reasons, *given.timing.reasons())


def _hot_share(given: PlanningInput) -> float:
    """Share of all experts that fits, by bytes."""
    return min(1.0, sum(given.pool_bytes) / given.places.total_bytes)
