"""Planning on real routing: the bundled model on recorded agent sessions (tests/data/tiny-routes.npz).

The bounds are a little below what benchmarks/results has for the same recording; they fail when planning gets worse.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from ostinatod.profiles.borrowing import default_rule, simulate_borrowing
from ostinatod.profiles.cost_model import probability_bounds
from ostinatod.profiles.coverage import coverage, expectations, mean_shares, step_cold_routes
from ostinatod.profiles.heldout import evaluate
from ostinatod.profiles.planner import ExpertPlaces, plan_hot, spread_evenly
from ostinatod.profiles.rates import Forgetting, learned_rates
from ostinatod.profiles.route_log import SessionRoutes, total_counts
from ostinatod.profiles.skew import check_skew

FILE = Path(__file__).parents[2] / "data" / "tiny-routes.npz"
PLACES = ExpertPlaces((0,) * 8, (1,) * 8, (64,) * 8)
K = 8
FORGETTING = Forgetting()


class Recording:
    """Sessions by domain and part, in the order they were recorded, and the held-out decode steps."""

    def __init__(self) -> None:
        with np.load(FILE) as data:
            self.domain, self.part = data["domain"].tolist(), data["part"].tolist()
            self.routes = [
                SessionRoutes(
                    session=str(name),
                    started_at=float(row),
                    last_at=float(row),
                    requests=int(data["turns"][row]),
                    layers=tuple(data["layers"].tolist()),
                    prefill=data["prefill"][row].astype(np.int64),
                    decode=data["decode"][row].astype(np.int64),
                    new_tokens=int(data["prefill_tokens"][row]),
                    output_tokens=int(data["decode_tokens"][row]),
                )
                for row, name in enumerate(data["session"])
            ]
            row_of_step = np.repeat(np.arange(len(self.routes)), data["step_count"])
            is_tested = np.array(self.part)[row_of_step] == "held-out"
            self.steps, self.step_turns = data["steps"][is_tested], data["step_turns"][is_tested]

    def of(self, part: str, *domains: str) -> list[SessionRoutes]:
        return [
            routes
            for routes, own, domain in zip(self.routes, self.part, self.domain, strict=True)
            if own == part and (not domains or domain in domains)
        ]


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording()


def slots(share: float) -> list[int]:
    return [round(share * 512)]


def learn(sessions: list[SessionRoutes], share: float) -> np.ndarray:
    return plan_hot(learned_rates(sessions, K, FORGETTING), PLACES, slots(share))


def covered(sessions: list[SessionRoutes], hot: np.ndarray) -> float:
    return coverage(sessions, hot, FORGETTING).overall


def test_no_task_stands_on_both_sides(recording: Recording) -> None:
    assert len(recording.of("development")) == 36
    assert len(recording.of("held-out")) == 16
    assert len({routes.session for routes in recording.routes}) == 52


@pytest.mark.parametrize(("share", "at_least"), [(0.25, 0.57), (0.44, 0.75), (0.52, 0.81)])
def test_what_is_learned_serves_other_tasks_nearly_as_well_as_hindsight(
    recording: Recording, share: float, at_least: float
) -> None:
    tested = recording.of("held-out")
    learned = covered(tested, learn(recording.of("development"), share))
    best = covered(tested, plan_hot(mean_shares(tested, FORGETTING), PLACES, slots(share)))
    even = covered(tested, spread_evenly(PLACES, slots(share)))
    assert learned >= at_least
    assert best - 0.02 <= learned <= best
    assert abs(even - share) < 0.03


def test_one_session_is_worth_most_of_it(recording: Recording) -> None:
    tested = recording.of("held-out")
    even = covered(tested, spread_evenly(PLACES, slots(0.44)))
    all_sessions = covered(tested, learn(recording.of("development"), 0.44))
    # Those of the one kind learned from, on all kinds.
    for first in recording.of("development")[::9]:
        assert covered(tested, learn([first], 0.44)) - even > 0.5 * (all_sessions - even)


def test_a_change_of_work_is_followed_within_a_few_sessions(recording: Recording) -> None:
    def later(sessions: list[SessionRoutes]) -> list[SessionRoutes]:
        return [dataclasses.replace(item, started_at=1000.0 + n, last_at=1000.0 + n) for n, item in enumerate(sessions)]

    coding, airline = recording.of("development", "swe"), later(recording.of("development", "airline"))
    tested = recording.of("held-out", "airline")
    frozen = covered(tested, learn(coding, 0.44))
    best = covered(tested, plan_hot(mean_shares(tested, FORGETTING), PLACES, slots(0.44)))
    adapted = [covered(tested, learn([*coding, *airline[:n]], 0.44)) for n in range(len(airline) + 1)]
    assert adapted[0] == frozen
    assert adapted[4] - frozen > 0.6 * (best - frozen)
    assert best - adapted[-1] < 0.03


def test_a_wild_session_costs_little_and_never_makes_it_worse_than_no_plan(recording: Recording) -> None:
    clean, tested = recording.of("development"), recording.of("held-out")
    counts = sum(total_counts(clean))
    unused = np.where(np.argsort(np.argsort(counts, axis=1), axis=1) < 32, 10**9, 0).astype(np.int64)
    wild = dataclasses.replace(
        clean[0], prefill=unused, decode=unused, new_tokens=10**9, output_tokens=10**9, last_at=clean[-1].last_at + 1
    )
    without, with_wild = covered(tested, learn(clean, 0.44)), covered(tested, learn([*clean, wild], 0.44))
    assert with_wild > without - 0.02
    assert with_wild > covered(tested, spread_evenly(PLACES, slots(0.44))) + 0.2


def test_the_daemon_s_own_comparison_agrees_with_other_tasks(recording: Recording) -> None:
    result = evaluate(recording.of("development"), PLACES, slots(0.44), K, FORGETTING)
    assert result is not None
    assert result.sessions == 8
    assert result.uniform == pytest.approx(0.44, abs=1e-3)
    assert result.uniform + 0.2 < result.learned.overall <= result.hindsight.overall


def test_the_skew_is_real(recording: Recording) -> None:
    skew = check_skew(sum(total_counts(recording.of("development"))), 0.44)
    assert skew.useful
    assert skew.gain > 10 * skew.null_gain


def test_learning_halves_the_cold_routes_of_single_decode_steps(recording: Recording) -> None:
    learned = step_cold_routes(recording.steps, learn(recording.of("development"), 0.44))
    even = step_cold_routes(recording.steps, spread_evenly(PLACES, slots(0.44)))
    assert learned.sum() < 0.5 * even.sum()
    mu, q = expectations(learned)
    least, most = probability_bounds(mu, K)
    assert (least <= q).all()
    assert (q <= most).all()


def test_borrowed_slots_serve_some_of_what_is_left(recording: Recording) -> None:
    hot = learn(recording.of("development"), 0.44)
    layers = np.arange(8)[:, None]
    starts = np.flatnonzero(np.diff(recording.step_turns, prepend=recording.step_turns[:1] + 1))
    answers = [
        [(layers * 64 + step)[~hot[layers, step]].tolist() for step in answer]
        for answer in np.split(recording.steps, starts[1:])
    ]
    # 2.7 % of the experts, as 4 GB are of DeepSeek-V4-Flash's.
    rule = default_rule(14, 1.0)
    outcome = simulate_borrowing(answers, rule)
    assert outcome.cold_routes == int(step_cold_routes(recording.steps, hot).sum())
    assert outcome.served / outcome.cold_routes > 0.1
    # Counting what is served saves uploads.
    plain = simulate_borrowing(answers, dataclasses.replace(rule, counts_served=False))
    assert outcome.uploads < 0.7 * plain.uploads
    assert outcome.served > 0.98 * plain.served
