"""What answers under one set predict for those under another, and what the engine's counters say beside it."""

from __future__ import annotations

import numpy as np
import pytest
from decode_costs import DecodeCounters
from learning_gpu import _samples, prediction
from session_replayer import SKIPPED_STEPS, TurnTimes

from ostinatod.profiles.calibration import LayerTimes, LinkShare, with_link_share
from ostinatod.profiles.cold_cost import ColdCost

EVEN = np.array([[True, True, False, False]])
LEARNED = np.array([[True, True, True, False]])
BASE_MS, ROUTE_MS, STEPS = 2.0, 0.5, 20


def turn(cold_routes: int, extra: int = 0) -> TurnTimes:
    """An answer with so many cold routes of expert 2, and `extra` of expert 3, in all."""
    routes = cold_routes + extra
    step_ms = (BASE_MS + ROUTE_MS * routes / (STEPS + SKIPPED_STEPS),) * STEPS
    decoded = np.array([[5, 5, cold_routes, extra]])
    return TurnTimes(100, 10, 30.0, step_ms, np.zeros(2, np.float32), decoded)


def test_turns_under_the_learned_set_take_what_those_under_the_even_one_predict() -> None:
    seen = _samples([turn(10 * n, 3 * n) for n in range(1, 13)], EVEN)
    coming = _samples([turn(0, 8 * n) for n in range(1, 5)], LEARNED)
    told = prediction(seen, coming, ColdCost(8, tuple(ROUTE_MS * r for r in range(7)), 0.0, 0.15))
    assert told["step_time"]["route_ms"] == pytest.approx(ROUTE_MS, rel=0.01)
    assert told["relative_error_p50"] == pytest.approx(0.0, abs=0.01)
    assert told["check_under_the_even_set"]["median_error"] == pytest.approx(0.0, abs=0.01)
    assert (len(told["answers"]["seen"]), len(told["answers"]["coming"])) == (12, 4)


def test_nothing_is_predicted_from_few_turns() -> None:
    told = prediction(_samples([turn(10)], EVEN), _samples([turn(0, 8)], LEARNED), None)
    assert (told["step_time"], told["cost"]) == (None, None)
    assert "tpot_ms_predicted" not in told


def counters(steps: tuple[int, ...], waited_ms: float, lent_experts: int) -> DecodeCounters:
    """Two layers whose CPU branch took 0.1 + 0.2 r ms, half of each cold expert computed in place meanwhile."""
    cpu_ms = tuple(n * (0.1 + 0.2 * r) for r, n in enumerate(steps, 1))
    layers = [LayerTimes(number, 10_000_000, steps, cpu_ms) for number in range(2)]
    share = LinkShare(512, 1024, 10**6, 50e9)
    return DecodeCounters(tuple(with_link_share(layers, share)), waited_ms, lent_experts, share)


def test_what_is_told_of_a_set_was_counted_under_it() -> None:
    told = counters((70, 40), 30.0, 9).since(counters((10, 20), 14.0, 4)).described(100)
    # Of 2 layers 60 steps with one and 20 with two cold routes.
    assert told["computed_routes_per_token"] == 2.0
    assert told["layers_with_any_per_token"] == 1.6
    assert (told["waited_ms_per_token"], told["lent_experts_per_token"]) == (0.16, 0.05)
    assert told["steps_with_1_2_routes"] == [120, 40]
    (branch,) = told["cpu_branch"]
    assert (branch["alpha_ms"], branch["beta_ms"], branch["link_ms"]) == (0.1, 0.2, 0.1)
    # C(r) - 0.1 r is 0.2 and 0.3 ms; 16 ms over 160 steps leave G = 0.125.
    assert told["overlap"]["gpu_branch_ms"] == pytest.approx(0.125)


def test_an_engine_without_a_gpu_counts_nothing() -> None:
    nothing = DecodeCounters((), 0.0, 0, None)
    assert nothing.cost(k=2, cold_routes=1.0) is None
    assert nothing.since(nothing).described(10)["overlap"] is None
