"""Rates are learned from sessions that each count as one and are forgotten with age; no single one can rule."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinatod.profiles.coverage import coverage, covered_share, mean_shares
from ostinatod.profiles.errors import CapacityError
from ostinatod.profiles.planner import plan_hot
from ostinatod.profiles.rates import (
    Forgetting,
    learned_rates,
    remembered,
    row_shares,
    session_shares,
    session_weights,
)
from tests.unit.profiles.sessions import EXPERTS, LAYERS, PLACES, K, favouring, hot, session

FORGETTING = Forgetting(half_life_sessions=4)


def test_a_layer_s_rates_add_up_to_k() -> None:
    rho = learned_rates([favouring(range(4)), favouring(range(4, 8), at=1)], K, FORGETTING)
    assert rho.sum(axis=1).tolist() == pytest.approx([K] * LAYERS)


def test_a_session_weighs_half_after_a_half_life_of_newer_ones() -> None:
    weights = session_weights([favouring(range(1), at=at) for at in range(5)], FORGETTING)
    assert weights[-1] == 1.0
    assert weights[0] == pytest.approx(0.5)


def test_a_short_session_counts_in_proportion_to_its_tokens() -> None:
    counts = np.ones((LAYERS, EXPERTS))
    assert session_weights([session(counts, tokens=64)], FORGETTING).tolist() == [0.25]  # 64 of 256


def test_merged_sessions_weigh_as_all_that_came_before() -> None:
    counts = np.ones((LAYERS, EXPERTS))
    endless = session_weights([session(counts, at=at) for at in range(400)], FORGETTING).sum()
    merged = session_weights([session(counts, merged=True), session(counts, at=1)], FORGETTING).sum()
    assert merged == pytest.approx(endless)


def test_age_is_what_counts_not_the_order_of_arrival() -> None:
    older, newer = favouring(range(4), at=1), favouring(range(4, 8), at=2)
    assert (learned_rates([newer, older], K, FORGETTING) == learned_rates([older, newer], K, FORGETTING)).all()


def test_a_long_session_counts_no_more_than_another() -> None:
    long = dataclasses.replace(favouring(range(4)), decode=favouring(range(4)).decode * 1000, output_tokens=1_000_000)
    other = favouring(range(4, 8))
    rho = learned_rates([long, other], K, Forgetting(half_life_sessions=1e9))
    assert rho[0, 0] == pytest.approx(rho[0, 4], rel=1e-6)


def test_prefill_counts_by_what_its_cold_routes_cost() -> None:
    read, written = np.zeros((1, 4)), np.zeros((1, 4))
    read[0, 0] = written[0, 1] = 100
    shares = session_shares(session(written, prefill=read), Forgetting(prefill_weight=0.25))
    # 1,000 tokens each: 250 : 1,000.
    assert shares[0].tolist() == pytest.approx([0.2, 0.8, 0.0, 0.0])


def test_a_layer_that_counts_fewer_tokens_weighs_the_same() -> None:
    counts = np.array([[80, 20], [8, 2]])
    assert session_shares(session(counts), FORGETTING).tolist() == [[0.8, 0.2], [0.8, 0.2]]


def test_a_session_whose_only_answer_was_broken_off_is_covered_by_what_it_routed_to() -> None:
    # Its routes are counted, its tokens are not told.
    broken_off = dataclasses.replace(favouring(range(4)), new_tokens=0, output_tokens=0)
    whole = favouring(range(4))
    found, expected = (coverage([each], hot(range(4)), FORGETTING).overall for each in (broken_off, whole))
    assert found == pytest.approx(expected)
    assert session_weights([broken_off], FORGETTING).tolist() == [0.0]


def test_the_prefill_weight_follows_from_the_paper() -> None:
    # Paper 4.4: 6.0 ms per token with six cold routes in each of 43 layers, 3.2 ms with 0.92 to 0.95; 3.2: 0.184 ms.
    per_route_ms = (6.0 - 3.2) / (43 * (6 - 0.94))
    assert Forgetting().prefill_weight == pytest.approx(per_route_ms / 0.184, abs=5e-4)


def test_a_prior_is_outgrown_like_a_session() -> None:
    prior = favouring(range(8, 12)).decode.astype(float)
    alone = learned_rates([], K, FORGETTING, prior)
    assert (np.argsort(-alone[0], kind="stable")[:4] == [8, 9, 10, 11]).all()
    seen = learned_rates([favouring(range(4), at=at) for at in range(2)], K, FORGETTING, prior)
    assert (np.argsort(-seen[0], kind="stable")[:4] == [0, 1, 2, 3]).all()


def test_sessions_that_have_no_say_any_more_are_left_out() -> None:
    sessions = [favouring(range(at % 9), at=at) for at in range(100)]
    kept = remembered(sessions, FORGETTING)
    assert [item.last_at for item in kept] == [float(at) for at in range(60, 100)]
    difference = learned_rates(kept, K, FORGETTING) - learned_rates(sessions, K, FORGETTING)
    assert np.abs(difference).max() < 1e-3
    assert len(remembered(sessions[:5], FORGETTING)) == 5


def test_nothing_can_be_learned_from_nothing() -> None:
    with pytest.raises(CapacityError, match="found none"):
        learned_rates([], K, FORGETTING)


def test_sessions_of_another_shape_are_refused() -> None:
    with pytest.raises(CapacityError, match="same layers and experts"):
        learned_rates([favouring(range(4)), session(np.ones((2, 4)))], K, FORGETTING)


wild_counts = st.lists(st.integers(0, 2**40), min_size=LAYERS * EXPERTS, max_size=LAYERS * EXPERTS).map(
    lambda values: np.array(values).reshape(LAYERS, EXPERTS)
)


@settings(max_examples=60, deadline=None)
@given(wild_counts, st.integers(0, 12), st.integers(1, 2**40), st.integers(1, LAYERS * EXPERTS - 1))
def test_a_wild_session_cannot_move_the_plan_for_long(counts: np.ndarray, newer: int, tokens: int, slots: int) -> None:
    """Whatever a session claims to have counted, its share of the rates is its weight's share, lam; and a plan by
    (1 - lam) clean + lam wild covers at most lam / (1 - lam) less of the clean routes than the clean plan."""
    clean = [favouring(range(at % 4, at % 4 + 4), at=at) for at in range(8 + newer)]
    wild = dataclasses.replace(session(counts, tokens=tokens), started_at=7.5, last_at=7.5)
    polluted = plan_hot(learned_rates([*clean, wild], K, FORGETTING), PLACES, [slots])
    rates = learned_rates(clean, K, FORGETTING)
    # The clean sessions as they weigh in the polluted plan: those before the wild one are a session older.
    ordered = [*clean[:8], wild, *clean[8:]]
    weights = session_weights(ordered, FORGETTING)
    lam = weights[8] / weights.sum()
    assert lam <= FORGETTING.decay**newer * (1 - FORGETTING.decay) / (1 - FORGETTING.decay ** len(ordered)) + 1e-12

    others = np.delete(weights, 8)
    mean = row_shares(np.einsum("s,sle->le", others, [session_shares(item, FORGETTING) for item in clean]))
    best = plan_hot(mean, PLACES, [slots])
    assert covered_share(mean, polluted) >= covered_share(mean, best) - lam / (1 - lam) - 1e-9
    assert rates.shape == mean.shape


def test_after_a_few_sessions_a_wild_one_is_forgotten_altogether() -> None:
    clean = [favouring(range(4), at=at) for at in range(10)]
    wild = dataclasses.replace(favouring(range(8, 12), times=10**9), started_at=3.5, last_at=3.5, output_tokens=10**12)
    plan = plan_hot(learned_rates([*clean[:4], wild, *clean[4:]], K, FORGETTING), PLACES, [4 * LAYERS])
    assert (plan == plan_hot(mean_shares(clean, FORGETTING), PLACES, [4 * LAYERS])).all()
