"""Time per output token as requests measured it, against their cold routes: what a residency set is expected to take.

By Equation (1) of the paper a decode step takes a base, which holds attention, dense weights and the GPU branches, plus
what its cold routes add. Where the engine has measured that (`cold_cost`), requests tell the base, what the length of
the context adds, which attention reads, and a factor on the measurement, which is drawn to 1. Only requests under
different sets tell that factor: under one set, those with more cold routes are those that repeat fewer experts, and
memory lent in decode serves them less. Where the engine has not measured it, requests tell what a cold route takes,
each the same, and nothing is predicted before they do. Predictions are checked on the requests that follow, and the
error is part of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cold_cost import ColdCost

Floats = NDArray[np.float64]

LEAST_SAMPLES = 8
"""Requests from which a line is drawn."""
SURE_BY = 2.0
"""Standard errors that a slope must be above 0, where nothing else tells what a cold route costs."""
MAX_CHECKED = 16
CHECKED_SHARE = 0.25
_OUTLIER = 1.345
"""Huber's constant: residuals beyond so many standard deviations count linearly."""
_ROUNDS = 12
_LEAST_SPREAD = 1e-3
"""Relative standard deviation of noise, at least: a few requests may fit a line exactly."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """One request's decode."""

    tpot_ms: float
    cold_routes: float
    """Per output token, over all layers: of experts outside the residency set, lent memory or not."""
    context_tokens: float
    """On average while it decoded."""
    output_tokens: int
    usual_cold_routes: float | None = None
    """Per output token under the same residency set, on average; None where the set is not known."""

    @property
    def cold_routes_of_set(self) -> float:
        """`usual_cold_routes`, else its own."""
        return self.cold_routes if self.usual_cold_routes is None else self.usual_cold_routes


@dataclass(frozen=True, slots=True)
class StepTime:
    """A line through requests: base + factor * cost(the set's cold routes) + context. Milliseconds per output token."""

    samples: int
    base_ms: float
    factor: float
    """On what `cost` says; without one, milliseconds of a cold route."""
    context_ms: float
    """Of a token of context."""
    factor_error: float
    """Standard error of `factor`."""
    spread_ms: float
    """Standard deviation of requests around the line."""
    mean_cold_routes: float
    mean_context_tokens: float
    cost: ColdCost | None = None
    """Of a token's cold routes, as the engine measured it; None where it has not."""

    @property
    def route_ms(self) -> float:
        """What each cold route of these requests took, on average."""
        return self.factor * self._mean_cost()

    @property
    def route_error_ms(self) -> float:
        """Standard error of that."""
        return self.factor_error * self._mean_cost()

    def tpot_ms(self, cold_routes: float) -> float:
        """Expected under a set that leaves so many cold routes per token, with the usual length of context."""
        return self.base_ms + self.factor * self._cost(cold_routes) + self.context_ms * self.mean_context_tokens

    def of_request(self, sample: StepSample) -> float:
        """Expected of a request with these cold routes and this context, under this set."""
        if self.cost is None:
            cold_ms = self.factor * sample.cold_routes
        else:
            cold_ms = self.factor * self._cost(sample.cold_routes_of_set) + float(_beside_set([sample], self.cost)[0])
        return self.base_ms + cold_ms + self.context_ms * sample.context_tokens

    def margin_ms(self, cold_routes: float) -> float:
        """Standard error of what is expected under a set."""
        leverage = self.factor_error * (self._cost(cold_routes) - self._cost(self.mean_cold_routes))
        return float(np.hypot(leverage, self.spread_ms / np.sqrt(self.samples)))

    def _cost(self, cold_routes: float) -> float:
        return float(self.cost.ms(cold_routes)) if self.cost else cold_routes

    def _mean_cost(self) -> float:
        return self._cost(self.mean_cold_routes) / self.mean_cold_routes if self.mean_cold_routes else 0.0


@dataclass(frozen=True, slots=True)
class PredictionCheck:
    """Requests that were predicted from the requests before them, and what they took. Errors are relative."""

    requests: int
    median_error: float
    """Median of the errors' sizes."""
    bias: float
    """Median error: above 0 where requests took longer than predicted."""


def mean_cold_routes(samples: Sequence[StepSample]) -> float:
    """Of a token, over all requests; 0 without any."""
    tokens = sum(item.output_tokens for item in samples)
    return sum(item.cold_routes * item.output_tokens for item in samples) / tokens if tokens else 0.0


def _beside_set(samples: Sequence[StepSample], cost: ColdCost) -> Floats:
    """(N,) what requests add to a token's time beside others under their set, having more cold routes than usual."""
    cold, usual = [item.cold_routes for item in samples], [item.cold_routes_of_set for item in samples]
    return cost.ms(cold, usual) - cost.ms(usual)


def fit_step_time(samples: Sequence[StepSample], cost: ColdCost | None) -> StepTime | None:
    """The line through requests; None where there are too few, or nothing tells what a cold route costs.

    cost  as the engine measured it; None where it has not
    """
    if len(samples) < LEAST_SAMPLES:
        return None
    tpot = np.array([item.tpot_ms for item in samples])
    if cost is None:
        cold = np.array([item.cold_routes for item in samples])
    else:
        cold = cost.ms([item.cold_routes_of_set for item in samples])
        tpot = tpot - _beside_set(samples, cost)
    context = np.array([item.context_tokens for item in samples])
    weights = np.array([float(item.output_tokens) for item in samples])
    weights /= weights.mean()
    centers = np.array([np.average(cold, weights=weights), np.average(context, weights=weights)])
    columns = [np.ones_like(tpot), cold - centers[0]]
    if float(np.std(context)) > 0.05 * max(1.0, float(np.mean(context))) and len(samples) > LEAST_SAMPLES:
        columns.append(context - centers[1])
    spread = cost.spread if cost else None
    coefficients, errors, noise_ms = _robust_fit(np.stack(columns, axis=1), tpot, weights, spread)
    if len(coefficients) > 2 and coefficients[2] < 0:
        # A longer context cannot be faster.
        coefficients, errors, noise_ms = _robust_fit(np.stack(columns[:2], axis=1), tpot, weights, spread)
    factor, factor_error = float(coefficients[1]), float(errors[1])
    if not np.isfinite(factor) or factor < 0 or (cost is None and factor < SURE_BY * factor_error):
        return None
    context_ms = float(coefficients[2]) if len(coefficients) > 2 else 0.0
    without_cold_ms = float(coefficients[0]) - factor * float(centers[0])
    if without_cold_ms <= 0:
        # Not even a token without a cold route would take time: noise, not a line.
        return None
    return StepTime(
        samples=len(samples),
        base_ms=without_cold_ms - context_ms * float(centers[1]),
        factor=factor,
        context_ms=context_ms,
        factor_error=factor_error,
        spread_ms=noise_ms,
        mean_cold_routes=mean_cold_routes(samples),
        mean_context_tokens=float(centers[1]),
        cost=cost,
    )


def check_predictions(samples: Sequence[StepSample], cost: ColdCost | None) -> PredictionCheck | None:
    """Each of the newest quarter predicted from those before it; samples in order of time. None where none could be."""
    count = min(MAX_CHECKED, max(1, round(CHECKED_SHARE * len(samples))))
    errors = []
    for number in range(max(LEAST_SAMPLES, len(samples) - count), len(samples)):
        sample = samples[number]
        fit = fit_step_time(samples[:number], cost)
        if fit is not None and (expected := fit.of_request(sample)) > 0:
            errors.append(sample.tpot_ms / expected - 1.0)
    if not errors:
        return None
    return PredictionCheck(len(errors), float(np.median(np.abs(errors))), float(np.median(errors)))


def _robust_fit(
    rows: Floats, values: Floats, weights: Floats, factor_spread: float | None
) -> tuple[Floats, Floats, float]:
    """Coefficients, their standard errors, and the spread around the line.

    The second coefficient is expected to be 1, give or take `factor_spread`; None where anything may be.
    Huber's estimator by reweighting: a request that shared the machine with another does not bend the line.
    """
    floor = _LEAST_SPREAD * float(np.median(np.abs(values)))
    trust = np.ones_like(values)
    coefficients, spread = np.zeros(rows.shape[1]), max(float(np.std(values)), floor)
    inverse = np.zeros((rows.shape[1],) * 2)
    for _ in range(_ROUNDS):
        weighed = rows * (weights * trust)[:, None]
        gram, target = rows.T @ weighed, weighed.T @ values
        if factor_spread is not None:
            pull = (spread / factor_spread) ** 2
            gram[1, 1] += pull
            target[1] += pull
        inverse = np.linalg.pinv(gram)
        coefficients = inverse @ target
        residuals = values - rows @ coefficients
        spread = max(1.4826 * float(np.median(np.abs(residuals))), floor)
        trust = np.minimum(1.0, _OUTLIER * spread / np.maximum(np.abs(residuals), 1e-12))
    if not np.ptp(rows[:, 1]) and factor_spread is None:
        return coefficients, np.full(rows.shape[1], np.inf), spread
    return coefficients, spread * np.sqrt(np.maximum(np.diag(inverse), 0.0)), spread
