"""Constants of the CPU branch, fitted to what an engine measured while it served (paper 3.2, Appendix B, Calibration).

An engine tells, of each layer, the decode steps that had 1, 2, … cold routes and what the CPU branch took for them. The
line alpha + beta r through their mean times is the paper's C(r). gamma0 is 0 here: a layer without cold routes tells
the CPU nothing. Layers whose experts differ in size are calibrated apart.

It also tells how long its GPUs waited in those steps. Overlapped, a layer waits for what its CPU branch takes beyond
its GPU branch, max(0, C(r) - G); the waits together therefore tell G, and with it what a cold route adds to a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import CostModelError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Decode steps of one layer by their cold routes. Raises CostModelError where the columns do not fit."""

    layer: int
    expert_bytes: int
    steps: tuple[int, ...]
    """With 1, 2, … cold routes."""
    cpu_ms: tuple[float, ...]
    """What the CPU branch took for them together."""

    def __post_init__(self) -> None:
        is_sound = len(self.steps) == len(self.cpu_ms) and self.expert_bytes > 0
        if not is_sound or min((*self.steps, *self.cpu_ms), default=0) < 0:
            raise CostModelError(
                f"layer {self.layer}: expected as many times as counts of steps, all 0 or more, and experts of a size, "
                f"found {len(self.cpu_ms)}, {len(self.steps)} and {self.expert_bytes} bytes"
            )


@dataclass(frozen=True, slots=True)
class CpuBranch:
    """C(r) = alpha + beta r of the layers whose experts have one size."""

    expert_bytes: int
    alpha_ms: float
    beta_ms: float
    steps: int
    """That were measured."""
    largest_error_ms: float
    """Between the line and a measured mean, over the numbers of cold routes that make up 1 % of the steps or more."""

    @property
    def route_gbps(self) -> float | None:
        """Speed at which a further cold route's weights are read, 1e9 bytes per second; None where it takes no time."""
        return self.expert_bytes / self.beta_ms / 1e6 if self.beta_ms > 0 else None


@dataclass(frozen=True, slots=True)
class DecodeOverlap:
    """How the two branches overlapped in decode steps of one token, over all layers with cold routes (Appendix B)."""

    steps: int
    """Of single layers, that were measured."""
    hidden_share: float
    """Of the CPU branch's time, in which the GPU works and does not wait."""
    gpu_branch_ms: float
    """G: the work of the GPU that hides the CPU branch, as long as the waits say."""
    route_ms: float
    """What a cold route adds to a step: the mean over those that there were of what the step is shorter without it."""


def fit_cpu_branch(layers: Sequence[LayerTimes]) -> tuple[CpuBranch, ...]:
    """The constants of each size of expert, the smallest first; sizes without a measured step are left out.

    Least squares over mean times, each weighing as many steps as it stands for. With one number of cold routes only,
    all of the time is taken for the routes'. Neither constant is negative.
    """
    fits = []
    for size, (steps, total_ms) in _by_size(layers).items():
        seen = steps > 0
        if seen.any():
            fits.append(_fit_line(size, np.arange(1.0, steps.size + 1)[seen], steps[seen], total_ms[seen]))
    return tuple(fits)


def fit_overlap(layers: Sequence[LayerTimes], waited_ms: float) -> DecodeOverlap | None:
    """The overlap of steps whose GPUs waited so long for the CPU branch in all; None where it did not work."""
    counted = _by_size(layers)
    busy_ms = float(sum(total_ms.sum() for _, total_ms in counted.values()))
    if busy_ms <= 0:
        return None
    parts = [(fit, counted[fit.expert_bytes][0]) for fit in fit_cpu_branch(layers)]
    steps = np.concatenate([counts for _, counts in parts])
    routes = np.concatenate([np.arange(1.0, counts.size + 1) for _, counts in parts])
    alpha, beta = np.repeat([(fit.alpha_ms, fit.beta_ms) for fit, _ in parts], [n.size for _, n in parts], axis=0).T
    cpu_ms = alpha + beta * routes
    gpu_ms = _gpu_branch_ms(cpu_ms, steps, waited_ms)
    waits = np.maximum(cpu_ms - gpu_ms, 0.0)
    # A layer's first cold route adds its whole wait, a further one the difference to a step with one less.
    before = np.where(routes > 1, np.roll(waits, 1), 0.0)
    return DecodeOverlap(
        steps=int(steps.sum()),
        hidden_share=max(0.0, 1.0 - waited_ms / busy_ms),
        gpu_branch_ms=max(0.0, gpu_ms),
        route_ms=float(np.dot(steps * routes, waits - before) / np.dot(steps, routes)),
    )


def mean_route_ms(fits: Sequence[CpuBranch]) -> float | None:
    """beta over all sizes, each weighing its steps; None without any."""
    steps = sum(fit.steps for fit in fits)
    return sum(fit.beta_ms * fit.steps for fit in fits) / steps if steps else None


def _gpu_branch_ms(cpu_ms: Floats, steps: Floats, waited_ms: float) -> float:
    """G with which steps that take `cpu_ms` make the GPU wait so long in all.

    Below 0 where it waited longer than the CPU worked: then the way there and back is what it waited for.
    """
    order = np.argsort(cpu_ms)
    cpu, counts = cpu_ms[order], steps[order]
    # Steps that take less than G make nobody wait; with the rest, the waits are linear in G.
    rest_steps, rest_ms = np.cumsum(counts[::-1])[::-1], np.cumsum((counts * cpu)[::-1])[::-1]
    candidates = (rest_ms[rest_steps > 0] - waited_ms) / rest_steps[rest_steps > 0]
    return float(np.max(candidates))


def _by_size(layers: Sequence[LayerTimes]) -> dict[int, tuple[Floats, Floats]]:
    """Steps with 1, 2, … cold routes and their times together, by size of expert, the smallest first."""
    found = {}
    for size in sorted({item.expert_bytes for item in layers}):
        group = [item for item in layers if item.expert_bytes == size]
        steps, total_ms = np.zeros((2, max(len(item.steps) for item in group)))
        for item in group:
            steps[: len(item.steps)] += item.steps
            total_ms[: len(item.cpu_ms)] += item.cpu_ms
        found[size] = steps, total_ms
    return found


def _fit_line(expert_bytes: int, r: Floats, steps: Floats, total_ms: Floats) -> CpuBranch:
    mean_ms = total_ms / steps
    center_r, center_ms = np.average(r, weights=steps), np.average(mean_ms, weights=steps)
    spread = float(np.dot(steps, (r - center_r) ** 2))
    slope = float(np.dot(steps, (r - center_r) * (mean_ms - center_ms))) / spread if spread > 0 else -1.0
    if spread == 0 or center_ms - slope * center_r < 0:
        # Through the origin: a fixed cost below 0 cannot be.
        slope = float(np.dot(steps * r, mean_ms) / np.dot(steps * r, r))
        alpha = 0.0
    elif slope < 0:
        slope, alpha = 0.0, float(center_ms)
    else:
        alpha = float(center_ms - slope * center_r)
    counted = steps >= 0.01 * steps.sum()
    error = float(np.abs(alpha + slope * r - mean_ms)[counted].max())
    return CpuBranch(expert_bytes, alpha, slope, int(steps.sum()), error)
