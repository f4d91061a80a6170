"""Time per token against cold routes: lines through requests, and how far off they are on the next ones."""

from __future__ import annotations

import numpy as np
import pytest

from ostinatod.profiles.cold_cost import ColdCost
from ostinatod.profiles.step_time import StepSample, check_predictions, fit_step_time


def samples(
    n: int, *, base: float = 20.0, route: float = 0.2, context: float = 0.0, noise: float = 0.0, spread: float = 10.0
) -> list[StepSample]:
    """Requests with 10 to 10 + spread cold routes per token."""
    draw = np.random.default_rng(n)
    found = []
    for _ in range(n):
        cold, tokens = 10 + spread * draw.random(), 1000 + 9000 * draw.random()
        tpot = base + route * cold + context * tokens + noise * draw.standard_normal()
        found.append(StepSample(tpot, cold, tokens, int(draw.integers(20, 200))))
    return found


def proportional(route_ms: float, spread: float) -> ColdCost:
    """Every cold route adds the same; of 4 layers with 10 routes of a token each."""
    return ColdCost(4, tuple(route_ms * r for r in range(11)), 0.0, spread)


def test_a_line_is_found_again() -> None:
    fit = fit_step_time(samples(40, context=0.001), None)
    assert fit is not None
    assert (fit.route_ms, fit.context_ms) == (pytest.approx(0.2), pytest.approx(0.001))
    assert fit.of_request(StepSample(0.0, 5.0, 2000, 1)) == pytest.approx(20 + 0.2 * 5 + 2)
    assert fit.tpot_ms(5.0) == pytest.approx(20 + 0.2 * 5 + 0.001 * fit.mean_context_tokens)


def test_requests_that_shared_the_machine_do_not_bend_the_line() -> None:
    found = samples(40, noise=0.05)
    slow = [
        StepSample(2 * item.tpot_ms, item.cold_routes, item.context_tokens, item.output_tokens) for item in found[:6]
    ]
    fit = fit_step_time([*slow, *found[6:]], None)
    assert fit is not None
    assert fit.route_ms == pytest.approx(0.2, abs=0.03)


def test_the_engine_s_measure_holds_until_requests_say_otherwise() -> None:
    # All requests under one set: nearly the same cold routes, so they alone tell nothing.
    alike = samples(20, noise=0.3, spread=0.1)
    assert fit_step_time(alike, None) is None
    measured = proportional(0.15, 0.3)
    drawn = fit_step_time(alike, measured)
    assert drawn is not None
    assert drawn.route_ms == pytest.approx(0.15, abs=0.03)
    told = fit_step_time(samples(100, noise=0.3), measured)
    assert told is not None
    assert told.route_ms == pytest.approx(0.2, abs=0.02)


def test_a_measure_that_is_surer_holds_longer() -> None:
    # 30 requests with noise of 1 ms around a slope of 0.2.
    found = samples(30, noise=1.0)
    sure, unsure = fit_step_time(found, proportional(0.1, 0.1)), fit_step_time(found, proportional(0.1, 1.0))
    assert sure is not None
    assert unsure is not None
    assert 0.1 <= sure.route_ms < 0.12 < unsure.route_ms


def test_cold_routes_that_are_hidden_whole_cost_nothing() -> None:
    fit = fit_step_time(samples(20, route=0.0), proportional(0.0, 0.15))
    assert fit is not None
    assert fit.route_ms == 0.0
    assert fit.tpot_ms(0.0) == pytest.approx(20.0)


def test_cold_routes_that_cost_nothing_predict_nothing() -> None:
    assert fit_step_time(samples(40, route=0.0, noise=0.5), None) is None


def test_a_line_that_would_take_less_than_no_time_is_noise() -> None:
    # 1 ms for each of 10 to 20 cold routes, 5 ms less in all: without a cold route it would take -5 ms.
    assert fit_step_time(samples(40, base=-5.0, route=1.0), None) is None


def test_a_longer_context_is_never_taken_to_be_faster() -> None:
    fit = fit_step_time(samples(40, context=-0.0002, noise=0.1), None)
    assert fit is not None
    assert fit.context_ms == 0.0


def test_the_engine_s_measure_bends_the_line() -> None:
    # A layer's first cold route costs three times what the others do; all requests have 24 to 26 of them, of 40.
    cost = ColdCost(4, (0.0, *(0.2 + 0.1 * r for r in range(1, 11))), 0.0, 0.15)
    cold = [24 + 0.1 * n for n in range(20)]
    seen = [StepSample(5 + float(cost.ms(n)), n, 1000.0, 50) for n in cold]
    fit = fit_step_time(seen, cost)
    assert fit is not None
    assert fit.tpot_ms(4.0) == pytest.approx(5 + float(cost.ms(4.0)))
    assert fit.route_ms == pytest.approx(float(cost.ms(24.95)) / 24.95)
    # Half of all that is measured is what requests say, where they are many and sure.
    half = [StepSample(5 + 0.5 * float(cost.ms(n)), n, 1000.0, 50) for n in range(1, 40)]
    fit = fit_step_time(half, cost)
    assert fit is not None
    assert fit.factor == pytest.approx(0.5, abs=0.01)


def test_requests_under_one_set_do_not_tell_what_another_would_take() -> None:
    # Whose cold routes repeat less take more for each of them, as if a cold route cost half as much again.
    cost = proportional(0.2, 0.15)
    one = [StepSample(20 + 0.3 * (n - 15), n, 1000.0, 50, 15.0) for n in np.linspace(10, 20, 40)]
    fit = fit_step_time(one, cost)
    assert fit is not None
    assert fit.factor == pytest.approx(1.0)
    assert fit.tpot_ms(5.0) == pytest.approx(20 - 0.2 * 10)
    assert fit.of_request(one[-1]) == pytest.approx(20 + 0.2 * 5)
    # Under a second set it did: those tell.
    two = [StepSample(20 - 0.3 * 10 + 0.2 * (n - 5), n, 1000.0, 50, 5.0) for n in np.linspace(4, 6, 40)]
    fit = fit_step_time([*one, *two], cost)
    assert fit is not None
    assert fit.factor == pytest.approx(1.5, abs=0.05)


def test_too_few_requests_predict_nothing() -> None:
    measured = proportional(0.2, 0.3)
    assert fit_step_time(samples(7), measured) is None
    assert check_predictions(samples(7), measured) is None
    assert check_predictions([], None) is None


def test_a_prediction_far_from_what_was_seen_is_less_sure() -> None:
    fit = fit_step_time(samples(40, noise=0.3), None)
    assert fit is not None
    assert fit.margin_ms(0.0) > fit.margin_ms(fit.mean_cold_routes)


def test_predictions_are_checked_on_the_requests_that_followed() -> None:
    steady = check_predictions(samples(40, noise=0.1), None)
    assert steady is not None
    assert steady.requests == 10
    assert steady.median_error < 0.01
    # From one day to the next everything takes a quarter more.
    slower = [StepSample(1.25 * s.tpot_ms, s.cold_routes, s.context_tokens, s.output_tokens) for s in samples(10)]
    changed = check_predictions([*samples(40, noise=0.1), *slower], None)
    assert changed is not None
    assert changed.bias == pytest.approx(0.25, abs=0.08)
