"""What a proposal says: coverage on sessions it has not seen, cold routes, bounds of a step, and reasons."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ostinatod.learning.capacity import costs_from_engine
from ostinatod.learning.planning import PlanningInput, day_zero, make_plan
from ostinatod.profiles.cost_model import CostModel
from ostinatod.profiles.experts import ModelExperts
from ostinatod.profiles.planner import ExpertPlaces
from ostinatod.profiles.rates import Forgetting
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
    assert "The set in use covers 50.0% of the same routes." in proposal.reasons


def test_measured_costs_bound_the_step() -> None:
    costs = CostModel.same_in_all_layers([0.137] * 2, gamma0_ms=0.120, alpha_ms=0.140, beta_ms=0.184)
    proposal = make_plan(dataclasses.replace(GIVEN, costs=costs)).proposal
    assert proposal is not None
    assert proposal.tpot_ms_predicted is not None
    least, most = proposal.tpot_ms_predicted
    mu = 2 * 2 / 42
    fixed = 2 * (0.137 + 0.184 * mu)
    # delta = 0.003; q lies between mu / 2 and mu.
    assert least == pytest.approx(fixed + 2 * 0.003 * mu / 2)
    assert most == pytest.approx(fixed + 2 * 0.003 * mu)


def test_with_one_session_nothing_is_claimed_about_others() -> None:
    proposal = make_plan(dataclasses.replace(GIVEN, sessions=GIVEN.sessions[:1])).proposal
    assert proposal is not None
    assert (proposal.coverage_held_out, proposal.coverage_hindsight, proposal.gain) == (None, None, None)
    assert any("the next one shows" in reason for reason in proposal.reasons)


def test_no_sessions_no_proposal() -> None:
    plan = make_plan(dataclasses.replace(GIVEN, sessions=()))
    assert (plan.sessions, plan.proposal) == (0, None)


def test_an_imatrix_is_among_the_reasons() -> None:
    prior = np.array([[1.0, 1, 9, 9]] * 2)
    proposal = make_plan(dataclasses.replace(GIVEN, prior=prior)).proposal
    assert proposal is not None
    assert any("imatrix" in reason for reason in proposal.reasons)
    assert favours(day_zero(PLACES, (4,), prior, 2)) == [[2, 3], [2, 3]]


EXPERTS = ModelExperts(layers=(0, 1), expert_bytes=(1, 1), n_experts=(4, 4), k=2)
COSTS: dict[str, Any] = {"gamma0": 0.12, "alpha": 0.14, "beta": [0.18, 0.19], "gpu_branch": 0.137}


def test_costs_are_read_from_the_engine() -> None:
    costs = costs_from_engine({"costs_ms": COSTS}, EXPERTS)
    assert costs is not None
    assert (costs.beta_ms, costs.gamma0_ms) == ((0.18, 0.19), (0.12, 0.12))


@pytest.mark.parametrize(
    "changes", [{"beta": None}, {"beta": [0.1]}, {"beta": "fast"}, {"beta": -1.0}, {"gpu_branch": 5.0}]
)
def test_costs_that_the_model_does_not_hold_for_are_not_used(changes: dict[str, Any]) -> None:
    assert costs_from_engine({"costs_ms": {**COSTS, **changes}}, EXPERTS) is None
    assert costs_from_engine({}, EXPERTS) is None
    assert costs_from_engine(None, EXPERTS) is None
