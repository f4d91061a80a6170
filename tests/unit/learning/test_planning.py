"""What a proposal says: coverage on sessions it has not seen, cold routes, time per token, and reasons."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ostinatod.learning.planning import PlanningInput, day_zero, make_plan
from ostinatod.learning.timing import Timing
from ostinatod.profiles.cold_cost import ColdCost
from ostinatod.profiles.planner import ExpertPlaces
from ostinatod.profiles.rates import Forgetting
from ostinatod.profiles.step_time import StepTime
from tests.unit.learning.conftest import favours, logged

PLACES = ExpertPlaces((0, 0), (1, 1), (4, 4))
GIVEN = PlanningInput(
    places=PLACES,
    k=2,
    pool_bytes=(4,),
    sessions=tuple(logged([2, 3], at=at) for at in range(4)),
    running=np.array([[True, False, True, False]] * 2),
    forgetting=Forgetting(),
)
COVERED = 40 / 42
"""What the two favourites of a layer take, 20 : 20 : 1 : 1."""


def test_a_proposal_is_compared_with_what_runs() -> None:
    plan = make_plan(GIVEN)
    assert plan.proposal is not None
    proposal = plan.proposal
    assert favours(proposal.hot) == [[2, 3], [2, 3]]
    assert (proposal.hot_experts, proposal.moved) == (4, 2)
    assert proposal.coverage_now == pytest.approx(21 / 42)
    assert proposal.coverage_held_out == pytest.approx(COVERED)
    assert proposal.coverage_hindsight == pytest.approx(COVERED)
    assert proposal.coverage_uniform == 0.5
    # Two layers of two routes each.
    assert proposal.cold_routes_per_token == pytest.approx(4 * 2 / 42)
    assert proposal.cold_routes_per_token_now == pytest.approx(2)
    assert proposal.gain == pytest.approx(COVERED - 0.5)
    assert proposal.tpot_ms_predicted is None
    assert any(
        "On the newest 1 session, sets learned from the sessions before cover 95.2%" in r for r in proposal.reasons
    )
    assert any("The set in use covers 50.0% of the same routes" in reason for reason in proposal.reasons)


def test_what_a_cold_route_costs_tells_what_a_token_will_take() -> None:
    # 10 ms and 0.5 ms for each cold route; the proposal leaves 8/42 of them, the running set 2.
    step_time = StepTime(20, 10.0, 0.5, 0.0, 0.1, 0.2, 2.0, 1000.0)
    proposal = make_plan(dataclasses.replace(GIVEN, timing=Timing(step_time))).proposal
    assert proposal is not None
    assert proposal.tpot_ms_now == pytest.approx(11.0)
    assert proposal.tpot_ms_predicted == pytest.approx(10 + 0.5 * 8 / 42)
    # 0.1 ms for each of the routes between, and 0.2 ms / sqrt(20) for the line's own height.
    assert proposal.tpot_ms_margin == pytest.approx(np.hypot(0.1 * (2 - 8 / 42), 0.2 / 20**0.5))
    assert any("In 20 requests a cold route took 0.5000 ms" in reason for reason in proposal.reasons)


def test_a_set_that_leaves_less_memory_to_be_lent_is_expected_to_have_less_served_there() -> None:
    cost = ColdCost.served_by_lent_memory(0.5, 2.0, 2, (0.0, 1.0, 2.0), 0.15)
    timing = Timing(StepTime(20, 10.0, 1.0, 0.0, 0.1, 0.2, 2.0, 1000.0, cost))
    smaller = dataclasses.replace(GIVEN, running=np.array([[True, False, False, False]] * 2), timing=timing)
    proposal = make_plan(smaller).proposal
    assert proposal is not None
    # Four sevenths of a slot are lent behind four hot experts, two more behind two.
    less = cost.with_memory_lent((4 / 7) / (4 / 7 + 2))
    assert proposal.tpot_ms_predicted == pytest.approx(10 + float(less.ms(8 / 42)))
    same = make_plan(dataclasses.replace(GIVEN, timing=timing)).proposal
    assert same is not None
    assert same.tpot_ms_predicted == pytest.approx(10 + float(cost.ms(8 / 42)))


def test_with_one_session_nothing_is_claimed_about_others() -> None:
    proposal = make_plan(dataclasses.replace(GIVEN, sessions=GIVEN.sessions[:1])).proposal
    assert proposal is not None
    assert (proposal.coverage_held_out, proposal.coverage_hindsight, proposal.gain) == (None, None, None)
    assert any("the next shows" in reason for reason in proposal.reasons)


def test_a_set_that_nothing_better_is_known_than_is_explained_too() -> None:
    plan = make_plan(dataclasses.replace(GIVEN, running=np.array([[False, False, True, True]] * 2)))
    assert plan.proposal is None
    assert plan.reasons[0] == plan.skew.sentence
    assert any("The set in use covers 95.2% of the same routes" in reason for reason in plan.reasons)
    assert plan.reasons[-1].startswith("It is the set that would be planned now")


def test_no_sessions_no_proposal() -> None:
    plan = make_plan(dataclasses.replace(GIVEN, sessions=()))
    assert (plan.sessions, plan.proposal) == (0, None)


def test_sessions_whose_tokens_nobody_told_are_nothing_to_learn_from() -> None:
    # They weigh nothing, so all experts would rank alike and the first layers would be filled.
    untold = tuple(dataclasses.replace(item, output_tokens=0) for item in GIVEN.sessions[:2])
    assert make_plan(dataclasses.replace(GIVEN, sessions=untold[:1])).proposal is None
    plan = make_plan(dataclasses.replace(GIVEN, sessions=(*untold, *GIVEN.sessions[2:3])))
    assert plan.proposal is not None
    assert favours(plan.proposal.hot) == [[2, 3], [2, 3]]
    assert plan.proposal.coverage_held_out is None


def test_an_imatrix_is_among_the_reasons() -> None:
    prior = np.array([[1.0, 1, 9, 9]] * 2)
    proposal = make_plan(dataclasses.replace(GIVEN, prior=prior)).proposal
    assert proposal is not None
    assert any("imatrix" in reason for reason in proposal.reasons)
    assert favours(day_zero(PLACES, (4,), prior, 2)) == [[2, 3], [2, 3]]
    first = make_plan(dataclasses.replace(GIVEN, prior=prior, sessions=()))
    assert first.reasons[-1] == "Until there is a session, counts of an imatrix decide."
