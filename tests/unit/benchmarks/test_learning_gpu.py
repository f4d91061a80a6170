"""What turns under one set predict for those under another."""

from __future__ import annotations

import numpy as np
import pytest
from learning_gpu import Experiment
from session_replayer import SKIPPED_STEPS, TurnTimes

EVEN = np.array([[True, True, False, False]])
LEARNED = np.array([[True, True, True, False]])
BASE_MS, ROUTE_MS, STEPS = 2.0, 0.5, 20


def turn(cold_routes: int, extra: int = 0) -> TurnTimes:
    """An answer with so many cold routes of expert 2, and `extra` of expert 3, in all."""
    routes = cold_routes + extra
    step_ms = (BASE_MS + ROUTE_MS * routes / (STEPS + SKIPPED_STEPS),) * STEPS
    decoded = np.array([[5, 5, cold_routes, extra]])
    return TurnTimes(100, 10, 30.0, step_ms, np.zeros(2, np.float32), decoded, routes, ROUTE_MS * routes)


def test_turns_under_the_learned_set_take_what_those_under_the_even_one_predict() -> None:
    experiment = Experiment.__new__(Experiment)
    seen = [turn(10 * n, 3 * n) for n in range(1, 13)]
    coming = [turn(0, 8 * n) for n in range(1, 5)]
    told = experiment.prediction(seen, EVEN, coming, LEARNED)
    assert told["cpu_ms_per_cold_route"] == pytest.approx(ROUTE_MS)
    assert told["step_time"]["route_ms"] == pytest.approx(ROUTE_MS, rel=0.01)
    assert told["relative_error_p50"] == pytest.approx(0.0, abs=0.01)
    assert told["check_under_the_even_set"]["median_error"] == pytest.approx(0.0, abs=0.01)


def test_nothing_is_predicted_from_few_turns() -> None:
    experiment = Experiment.__new__(Experiment)
    told = experiment.prediction([turn(10)], EVEN, [turn(0, 8)], LEARNED)
    assert told["step_time"] is None
    assert "tpot_ms_predicted" not in told
