"""Held-out coverage: what a plan serves of sessions that it has not seen."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ostinatod.profiles.coverage import (
    Coverage,
    cold_routes,
    coverage,
    covered_share,
    expectations,
    random_coverage,
    step_cold_routes,
)
from ostinatod.profiles.heldout import evaluate, held_out
from ostinatod.profiles.rates import Forgetting
from tests.unit.profiles.sessions import EXPERTS, LAYERS, PLACES, K, favouring, hot, session

FORGETTING = Forgetting()
FOUR = [4 * LAYERS]


def test_the_newest_quarter_is_held_out() -> None:
    sessions = [favouring(range(4), at=at) for at in range(8)]
    assert [item.last_at for item in held_out(sessions)] == [6.0, 7.0]
    assert held_out(sessions[:1]) == ()
    assert len(held_out(sessions * 20)) == 8


def test_merged_sessions_are_never_held_out() -> None:
    merged = session(np.ones((LAYERS, EXPERTS)), merged=True, at=5)
    assert [item.last_at for item in held_out([merged, favouring(range(4), at=1)])] == [1.0]


def test_sessions_of_a_few_tokens_are_held_out_only_where_there_are_no_others() -> None:
    long = [favouring(range(4), at=at) for at in (0, 1, 3)]
    short = [dataclasses.replace(favouring(range(8, 12), at=at), output_tokens=63) for at in (2, 4)]
    assert [item.last_at for item in held_out([*long, *short])] == [3.0]
    result = evaluate([*long, *short], PLACES, FOUR, K, FORGETTING)
    assert result is not None
    assert result.learned.overall == result.hindsight.overall == pytest.approx(36 / 44)
    # One that is long enough has nothing before it that tells anything.
    assert held_out([long[0], *short]) == ()
    assert [item.last_at for item in held_out(short)] == [4.0]


def test_a_set_that_no_session_had_a_say_in_is_the_even_one() -> None:
    untold = [dataclasses.replace(favouring(range(4), at=at), output_tokens=0) for at in range(2)]
    result = evaluate(untold, PLACES, FOUR, K, FORGETTING)
    assert result is not None
    # Of 12 experts every third is in the even set, two of them among the first four or one; all layers alike.
    assert result.learned.overall < result.hindsight.overall


def test_stable_routing_is_learned_up_to_the_best_possible() -> None:
    result = evaluate([favouring(range(4), at=at) for at in range(8)], PLACES, FOUR, K, FORGETTING)
    assert result is not None
    # 4 favourites of 12 with 9 times the routes: 36 / (36 + 8) of them.
    assert result.learned.overall == pytest.approx(36 / 44)
    assert result.learned.overall == result.hindsight.overall
    assert result.uniform == pytest.approx(4 / 12)


def test_a_session_is_never_tested_by_a_plan_that_saw_it() -> None:
    # The last session is the first of its kind: only a plan that had seen it could cover its favourites.
    sessions = [*(favouring(range(4), at=at) for at in range(3)), favouring(range(8, 12), at=3)]
    result = evaluate(sessions, PLACES, FOUR, K, FORGETTING)
    assert result is not None
    assert result.sessions == 1
    assert result.learned.overall == pytest.approx(4 / 44)
    assert result.hindsight.overall == pytest.approx(36 / 44)


def test_a_single_session_can_only_be_tested_against_no_knowledge() -> None:
    assert evaluate([favouring(range(4))], PLACES, FOUR, K, FORGETTING) is None


def test_coverage_is_told_by_phase() -> None:
    read, written = np.zeros((1, 4)), np.zeros((1, 4))
    read[0] = [90, 10, 0, 0]
    written[0] = [0, 50, 50, 0]
    mask = np.array([[True, True, False, False]])
    result = coverage([session(written, prefill=read)], mask, Forgetting(prefill_weight=1.0))
    assert result == Coverage(overall=0.75, prefill=1.0, decode=0.5)
    assert coverage([session(written)], mask, FORGETTING).prefill is None


def test_cold_routes_per_token_count_all_layers() -> None:
    # Paper 4.4: short prefills leave 0.92-0.95 of six experts per layer, a coverage of 84.2-84.7 %.
    assert Coverage(0.84, 0.84, None).cold_routes_per_token(1, 6) == pytest.approx(0.96)
    assert [Coverage(0, 0, 1 - cold / 6).cold_routes_per_token(1, 6) for cold in (0.92, 0.95)] == pytest.approx(
        [0.92, 0.95]
    )
    assert Coverage(0.5, None, None).cold_routes_per_token(43, 6) == 129


def test_layers_without_routes_do_not_count() -> None:
    shares = np.array([[0.75, 0.25], [0.0, 0.0]])
    assert covered_share(shares, np.array([[True, False], [False, False]])) == 0.75
    assert covered_share(np.zeros((2, 2)), np.ones((2, 2), np.bool_)) == 0.0


def test_a_trace_s_cold_routes_agree_with_its_rates() -> None:
    steps = np.random.default_rng(3).permuted(np.tile(np.arange(EXPERTS), (50, LAYERS, 1)), axis=2)[:, :, :K]
    mask = hot(range(5))
    rho = np.zeros((LAYERS, EXPERTS))
    for layer in range(LAYERS):
        np.add.at(rho[layer], steps[:, layer].ravel(), 1 / len(steps))
    mu, q = expectations(step_cold_routes(steps, mask))
    assert mu.tolist() == pytest.approx(cold_routes(rho, mask).tolist())
    assert (q <= mu).all()
    assert random_coverage(mask) == 5 / 12
