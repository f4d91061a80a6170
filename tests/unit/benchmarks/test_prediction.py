"""From decode steps under an evenly spread set to those under a learned one, on machines whose constants are known.

The routes are those of recorded sessions with the bundled model. A machine takes for each of its steps exactly what the
paper's cost model says, and lends memory to cold experts by the rule of paper 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from learning_replay import Recorded, Replay
from numpy.typing import NDArray

from ostinatod.profiles.calibration import LayerTimes, cold_cost, fit_cpu_branch, fit_overlap
from ostinatod.profiles.planner import spread_evenly
from ostinatod.profiles.step_time import StepSample, fit_step_time, mean_cold_routes

Mask = NDArray[np.bool_]

ROUTES = Path(__file__).parents[2] / "data" / "tiny-routes.npz"
HOT = 0.44
BASE_MS = 1.3


@dataclass(frozen=True)
class Machine:
    """C(r) = alpha + beta r beside a GPU's G + gamma r; `slots` of lent memory, one upload per step."""

    alpha: float
    beta: float
    gpu: float
    gamma: float
    slots: int

    def step_ms(self, computed: NDArray[np.int64]) -> float:
        """Of a step whose layers compute so many cold routes."""
        later = np.maximum(self.alpha + self.beta * computed, self.gpu + self.gamma * computed)
        return BASE_MS + float((later - self.gpu)[computed > 0].sum())


@dataclass(frozen=True)
class Served:
    """What a machine did with sessions under a set."""

    samples: list[StepSample]
    layers: list[LayerTimes]
    waited_ms: float
    computed: float
    """Cold routes per token."""


def serve(machine: Machine, sessions: Sequence[Recorded], hot: Mask) -> Served:
    """Every turn is a request, before which its prefill has taken back all memory."""
    rows = np.arange(hot.shape[0])[:, None]
    samples, computed = [], []
    scores = np.zeros(hot.shape)
    for session in sessions:
        for turn in np.unique(session.step_turns):
            lent, steps, cold, times = np.zeros_like(hot), session.steps[session.step_turns == turn], 0, []
            for selected in steps:
                missing = ~(hot | lent)[rows, selected]
                cold += int((~hot[rows, selected]).sum())
                computed.append(missing.sum(axis=1))
                times.append(machine.step_ms(computed[-1]))
                scores *= 0.97
                np.add.at(scores, (rows, selected), ~hot[rows, selected])
                _lend(machine, scores, hot, lent)
            samples.append(StepSample(float(np.mean(times)), cold / len(times), 1000.0, len(times)))
    usual = mean_cold_routes(samples)
    counted = np.array(computed)
    by_number = np.arange(1, 9)
    cpu_ms = machine.alpha + machine.beta * by_number
    waits_ms = np.maximum(0.0, cpu_ms - machine.gpu - machine.gamma * by_number)
    steps_of = [(counted[:, [layer]] == by_number).sum(axis=0) for layer in range(hot.shape[0])]
    layers = [
        LayerTimes(layer, 13_400_000, tuple(steps.tolist()), tuple((steps * cpu_ms).tolist()), machine.gamma)
        for layer, steps in enumerate(steps_of)
    ]
    waited_ms = float(sum(steps @ waits_ms for steps in steps_of))
    samples = [replace(item, usual_cold_routes=usual) for item in samples]
    return Served(samples, layers, waited_ms, float(counted.sum() / len(counted)))


def _lend(machine: Machine, scores: NDArray[np.float64], hot: Mask, lent: Mask) -> None:
    """Upload the cold expert that was used most, if a slot is free or holds one of less than half its score."""
    newcomer = np.unravel_index(np.argmax(np.where(hot | lent, -1.0, scores)), hot.shape)
    if machine.slots == 0 or scores[newcomer] <= 0:
        return
    if lent.sum() == machine.slots:
        least = np.unravel_index(np.argmin(np.where(lent, scores, np.inf)), hot.shape)
        if scores[newcomer] <= 2 * scores[least]:
            return
        lent[least] = False
    lent[newcomer] = True


@pytest.fixture(scope="module")
def replay() -> Replay:
    return Replay(ROUTES)


def tpot_ms(samples: Sequence[StepSample]) -> float:
    return float(np.average([item.tpot_ms for item in samples], weights=[item.output_tokens for item in samples]))


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(Machine(0.140, 0.184, 0.137, 0.0, 0), id="the paper's"),
        pytest.param(Machine(0.140, 0.184, 0.137, 0.0, 38), id="the paper's, lending"),
        pytest.param(Machine(0.03, 0.108, 0.03, 0.114, 0), id="link shared"),
        pytest.param(Machine(0.03, 0.108, 0.03, 0.114, 14), id="link shared, lending little"),
        pytest.param(Machine(0.03, 0.108, 0.03, 0.114, 38), id="link shared, lending"),
        pytest.param(Machine(0.12, 0.10, 0.03, 0.09, 38), id="dear first routes"),
        pytest.param(Machine(0.02, 0.10, 0.25, 0.05, 38), id="first routes hidden"),
    ],
)
def test_the_even_set_s_steps_predict_the_learned_set_s(replay: Replay, machine: Machine) -> None:
    learned = replay.learn(replay.of("development"), HOT)
    tested = [item for item in replay.sessions if item.part == "held-out"]
    seen = serve(machine, tested, spread_evenly(replay.places, replay.slots(HOT)))
    coming = serve(machine, tested, learned)
    now, then = mean_cold_routes(seen.samples), mean_cold_routes(coming.samples)
    cost = cold_cost(
        fit_cpu_branch(seen.layers), fit_overlap(seen.layers, seen.waited_ms), layers=8, k=replay.k, cold_routes=now
    )
    fit = fit_step_time(seen.samples, cost)
    assert fit is not None
    assert cost is not None
    assert fit.tpot_ms(then) == pytest.approx(tpot_ms(coming.samples), rel=0.03)
    assert cost.computed(now) == pytest.approx(seen.computed, rel=0.05)
    assert cost.computed(then) == pytest.approx(coming.computed, rel=0.05)
    # What is predicted is no small difference.
    assert tpot_ms(coming.samples) < 0.75 * tpot_ms(seen.samples)
