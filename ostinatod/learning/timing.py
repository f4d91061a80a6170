"""What a token takes and what a cold route of it costs, from logged requests and the engine's own calibration.

The planner's predictions come from here, and so does how far off they were on the requests that followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ostinatod.learning.calibrations import Calibration, Calibrations, Kept, read_calibration
from ostinatod.learning.model_files import ModelFacts
from ostinatod.profiles.step_time import (
    PredictionCheck,
    StepSample,
    StepTime,
    check_predictions,
    fit_step_time,
    mean_cold_routes,
)

LEAST_TOKENS = 8
"""Answers shorter than this say little about time per token."""


class MeasuredRequest(Protocol):
    """What is needed of a logged request; `routing_log.records.LoggedRequest` has it."""

    @property
    def status(self) -> str: ...
    @property
    def started_at(self) -> float: ...
    @property
    def tpot_ms(self) -> float | None: ...
    @property
    def new_tokens(self) -> int | None: ...
    @property
    def reused_tokens(self) -> int | None: ...
    @property
    def output_tokens(self) -> int | None: ...
    @property
    def generation(self) -> int | None: ...
    @property
    def coverage_decode(self) -> float | None: ...


ReadRequests = Callable[[str], Sequence[MeasuredRequest]]
"""The latest requests of a model, the newest first, given its fingerprint."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What is known of a model's time per output token. Everything None where nothing was measured."""

    step_time: StepTime | None = None
    check: PredictionCheck | None = None
    calibration: Calibration | None = None

    def as_json(self) -> dict[str, Any]:
        """As the daemon tells it."""
        fit, check = self.step_time, self.check
        return {
            "requests": fit.samples if fit else 0,
            "cold_route_ms": round(fit.route_ms, 6) if fit else None,
            "cold_route_ms_error": round(fit.route_error_ms, 6) if fit else None,
            "checked_requests": check.requests if check else 0,
            "median_error": round(check.median_error, 4) if check else None,
            "bias": round(check.bias, 4) if check else None,
            "calibration": self.calibration.as_json() if self.calibration else None,
        }

    def reasons(self) -> tuple[str, ...]:
        """Sentences for people."""
        told = []
        if self.calibration and self.calibration.cpu_branch:
            sizes = ", ".join(
                f"{fit.alpha_ms:.3f} + {fit.beta_ms:.3f} r ms (within {fit.largest_error_ms:.3f})"
                for fit in self.calibration.cpu_branch
            )
            told.append(f"The engine measured for r cold routes of a layer's decode step: {sizes}.")
        if self.calibration and (overlap := self.calibration.overlap):
            link_ms = max(fit.link_ms for fit in self.calibration.cpu_branch)
            share = f" and takes {link_ms:.4f} ms for its own share of each cold expert" if link_ms else ""
            told.append(
                f"The GPU works meanwhile for {overlap.hidden_share:.0%} of that time{share}, so a cold route adds "
                f"{overlap.route_ms:.4f} ms to a token."
            )
        if self.step_time:
            fit = self.step_time
            told.append(
                f"In {fit.samples} requests a cold route took {fit.route_ms:.4f} ms of a token's time, "
                f"give or take {fit.route_error_ms:.4f}{_served(fit)}."
            )
        if self.check:
            side = "longer" if self.check.bias > 0 else "shorter"
            told.append(
                f"The newest {self.check.requests} requests were predicted from those before: off by "
                f"{self.check.median_error:.1%} in the median, and they took {abs(self.check.bias):.1%} {side}."
            )
        if self.calibration and self.calibration.prefill_error is not None:
            told.append(
                f"In prefill the CPU branch took {self.calibration.prefill_error:+.0%} of what its measured speeds say."
            )
        return tuple(told)


def _served(fit: StepTime) -> str:
    cold = fit.mean_cold_routes
    if fit.cost is None or not fit.cost.lent or not cold:
        return ""
    return f", with those {1 - float(fit.cost.computed(cold)) / cold:.0%} that lent memory served"


NOTHING_MEASURED = Timing()


class Timings:
    """Reads what is needed for a model's timing. Methods block and raise RoutingLogUnavailable, PlanUnavailable."""

    def __init__(self, read_requests: ReadRequests, calibrations: Calibrations) -> None:
        self._read_requests = read_requests
        self._calibrations = calibrations

    def calibrations(self) -> list[dict[str, Any]]:
        """What engines have measured on this machine, one entry per model, the latest last."""
        return described(self._calibrations.latest())

    def of(self, facts: ModelFacts, status: Mapping[str, Any] | None, build: str | None) -> Timing:
        """The timing of a model now.

        status  what its engine tells of itself, None where it is not loaded
        build   of that engine; what was measured last on this machine holds where there is none
        """
        fingerprint = facts.layout.fingerprint
        if build is None:
            kept = self._calibrations.latest(fingerprint).get(fingerprint)
        else:
            kept = self._calibrations.keep(fingerprint, build, read_calibration(status))
        since = kept.since if kept else 0.0
        layers, k = len(facts.experts.layers), facts.experts.k
        samples = step_samples(self._read_requests(fingerprint), since, layers * k)
        calibration = kept.calibration if kept and kept.calibration != Calibration() else None
        cost = None
        if calibration:
            cost = calibration.cold_cost(layers=layers, k=k, cold_routes=mean_cold_routes(samples))
        return Timing(fit_step_time(samples, cost), check_predictions(samples, cost), calibration)


def described(calibrations: Mapping[str, Kept]) -> list[dict[str, Any]]:
    """As the daemon and the command line tell them."""
    return [
        {"model": name, "build": kept.build, "updated_at": kept.updated_at, **kept.calibration.as_json()}
        for name, kept in calibrations.items()
    ]


def step_samples(requests: Sequence[MeasuredRequest], since: float, routes_per_token: int) -> list[StepSample]:
    """The requests that tell of decode, in order of time.

    since             unix seconds; earlier requests ran on another machine or build
    routes_per_token  of all layers together
    """
    found: list[tuple[int | None, StepSample]] = []
    for request in requests:
        tokens, coverage = request.output_tokens or 0, request.coverage_decode
        if request.status != "ok" or request.started_at < since or tokens < LEAST_TOKENS:
            continue
        if request.tpot_ms is None or coverage is None:
            continue
        context = (request.new_tokens or 0) + (request.reused_tokens or 0) + tokens / 2
        sample = StepSample(request.tpot_ms, routes_per_token * (1.0 - coverage), context, tokens)
        found.append((request.generation, sample))
    usual = {
        generation: mean_cold_routes([sample for other, sample in found if other == generation])
        for generation in {generation for generation, _ in found}
    }
    return [
        sample if generation is None else replace(sample, usual_cold_routes=usual[generation])
        for generation, sample in reversed(found)
    ]
