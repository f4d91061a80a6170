"""Time per output token as requests measured it, against their cold routes: what a residency set is expected to take.

By Equation (1) of the paper a decode step takes a base, which holds attention, dense weights and the GPU branches, plus
beta for each cold route, plus what of the fixed cost is not hidden. Requests tell all of it as one line: time per
output token against cold routes per token, and against the length of the context, which attention reads. Where the
engine has measured what a route costs, the slope is drawn to that until requests say otherwise; where nothing says it,
nothing is predicted. Predictions are checked on the requests that follow, and the error is part of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
class RouteCost:
    """What a cold route adds to a token's time as the engine measured it, with its standard deviation. Milliseconds."""

    ms: float
    spread_ms: float
    """Above 0."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """One request's decode."""

    tpot_ms: float
    cold_routes: float
    """Per output token, over all layers."""
    context_tokens: float
    """On average while it decoded."""
    output_tokens: int


@dataclass(frozen=True, slots=True)
class StepTime:
    """A line through requests. Milliseconds per output token."""

    samples: int
    base_ms: float
    route_ms: float
    """Of a cold route."""
    context_ms: float
    """Of a token of context."""
    route_error_ms: float
    """Standard error of `route_ms`."""
    spread_ms: float
    """Standard deviation of requests around the line."""
    mean_cold_routes: float
    mean_context_tokens: float

    def tpot_ms(self, cold_routes: float, context_tokens: float | None = None) -> float:
        """Expected of requests with so many cold routes per token; their context is the usual one if not given."""
        context = self.mean_context_tokens if context_tokens is None else context_tokens
        return self.base_ms + self.route_ms * cold_routes + self.context_ms * context

    def margin_ms(self, cold_routes: float) -> float:
        """Standard error of that expectation."""
        leverage = self.route_error_ms * (cold_routes - self.mean_cold_routes)
        return float(np.hypot(leverage, self.spread_ms / np.sqrt(self.samples)))


@dataclass(frozen=True, slots=True)
class PredictionCheck:
    """Requests that were predicted from the requests before them, and what they took. Errors are relative."""

    requests: int
    median_error: float
    """Median of the errors' sizes."""
    bias: float
    """Median error: above 0 where requests took longer than predicted."""


def fit_step_time(samples: Sequence[StepSample], measured: RouteCost | None) -> StepTime | None:
    """The line through requests; None where there are too few, or nothing tells what a cold route costs.

    measured  by the engine; None where it has not
    """
    if len(samples) < LEAST_SAMPLES:
        return None
    tpot = np.array([item.tpot_ms for item in samples])
    cold = np.array([item.cold_routes for item in samples])
    context = np.array([item.context_tokens for item in samples])
    weights = np.array([float(item.output_tokens) for item in samples])
    weights /= weights.mean()
    centers = np.array([np.average(cold, weights=weights), np.average(context, weights=weights)])
    columns = [np.ones_like(tpot), cold - centers[0]]
    if float(np.std(context)) > 0.05 * max(1.0, float(np.mean(context))) and len(samples) > LEAST_SAMPLES:
        columns.append(context - centers[1])
    coefficients, errors, spread = _robust_fit(np.stack(columns, axis=1), tpot, weights, measured)
    if len(coefficients) > 2 and coefficients[2] < 0:
        # A longer context cannot be faster.
        coefficients, errors, spread = _robust_fit(np.stack(columns[:2], axis=1), tpot, weights, measured)
    slope, slope_error = float(coefficients[1]), float(errors[1])
    if not np.isfinite(slope) or slope < 0 or (measured is None and slope < SURE_BY * slope_error):
        return None
    context_ms = float(coefficients[2]) if len(coefficients) > 2 else 0.0
    if float(coefficients[0]) - slope * float(centers[0]) <= 0:
        # Not even a token without a cold route would take time: noise, not a line.
        return None
    return StepTime(
        samples=len(samples),
        base_ms=float(coefficients[0]) - slope * float(centers[0]) - context_ms * float(centers[1]),
        route_ms=slope,
        context_ms=context_ms,
        route_error_ms=slope_error,
        spread_ms=spread,
        mean_cold_routes=float(centers[0]),
        mean_context_tokens=float(centers[1]),
    )


def check_predictions(samples: Sequence[StepSample], measured: RouteCost | None) -> PredictionCheck | None:
    """Each of the newest quarter predicted from those before it; samples in order of time. None where none could be."""
    count = min(MAX_CHECKED, max(1, round(CHECKED_SHARE * len(samples))))
    errors = []
    for number in range(max(LEAST_SAMPLES, len(samples) - count), len(samples)):
        sample = samples[number]
        fit = fit_step_time(samples[:number], measured)
        if fit is not None and (expected := fit.tpot_ms(sample.cold_routes, sample.context_tokens)) > 0:
            errors.append(sample.tpot_ms / expected - 1.0)
    if not errors:
        return None
    return PredictionCheck(len(errors), float(np.median(np.abs(errors))), float(np.median(errors)))


def _robust_fit(rows: Floats, values: Floats, weights: Floats, prior: RouteCost | None) -> tuple[Floats, Floats, float]:
    """Coefficients, their standard errors, and the spread around the line; the second coefficient is drawn to `prior`.

    Huber's estimator by reweighting: a request that shared the machine with another does not bend the line.
    """
    floor = _LEAST_SPREAD * float(np.median(np.abs(values)))
    trust = np.ones_like(values)
    coefficients, spread = np.zeros(rows.shape[1]), max(float(np.std(values)), floor)
    inverse = np.zeros((rows.shape[1],) * 2)
    for _ in range(_ROUNDS):
        weighed = rows * (weights * trust)[:, None]
        gram, target = rows.T @ weighed, weighed.T @ values
        if prior is not None:
            pull = (spread / prior.spread_ms) ** 2
            gram[1, 1] += pull
            target[1] += pull * prior.ms
        inverse = np.linalg.pinv(gram)
        coefficients = inverse @ target
        residuals = values - rows @ coefficients
        spread = max(1.4826 * float(np.median(np.abs(residuals))), floor)
        trust = np.minimum(1.0, _OUTLIER * spread / np.maximum(np.abs(residuals), 1e-12))
    if not np.ptp(rows[:, 1]) and prior is None:
        return coefficients, np.full(rows.shape[1], np.inf), spread
    return coefficients, spread * np.sqrt(np.maximum(np.diag(inverse), 0.0)), spread
