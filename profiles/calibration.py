"""Constants of the CPU branch, fitted to what an engine measured while it served (paper 3.2, Appendix B, Calibration).

An engine tells, of each layer, the decode steps that had 1, 2, … cold routes and what the CPU branch took for them. The
line alpha + beta r through their mean times is the paper's C(r). gamma0 is 0 here: a layer without cold routes tells
the CPU nothing. Layers whose experts differ in size are calibrated apart.

It also tells how long its GPUs waited in those steps. In such a step a GPU computes a share of every cold expert in
place (paper 3.4), which takes it gamma for each, so that a layer waits max(0, C(r) - G - gamma r). gamma follows from
the speed measured at load, G from the waits together, and what r cold routes add to a step from both: the later of the
two branches, less the GPU branch of a layer without cold routes: max(C(r), G + gamma r) - G.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .cold_cost import ColdCost, routes_with_any
from .errors import CostModelError

Floats = NDArray[np.float64]

BETA_SPREAD = 0.3
"""Standard deviation of what cold routes truly cost over what is expected, where nothing tells how much is hidden."""
OVERLAP_SPREAD = 0.15
"""The same where that was measured."""
COUNTED_STEPS = 1000
"""Of layers, from which their cold routes tell how many lent memory has served; fewer say too little."""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Decode steps of one layer by their cold routes. Raises CostModelError where the columns do not fit."""

    layer: int
    expert_bytes: int
    steps: tuple[int, ...]
    """With 1, 2, … cold routes."""
    cpu_ms: tuple[float, ...]
    """What the CPU branch took for them together."""
    link_ms: float = 0.0
    """gamma: what the GPU takes meanwhile for its share of a cold expert, in place over the link; 0 without one."""

    def __post_init__(self) -> None:
        is_sound = len(self.steps) == len(self.cpu_ms) and self.expert_bytes > 0
        if not is_sound or min((*self.steps, *self.cpu_ms, self.link_ms)) < 0:
            raise CostModelError(
                f"layer {self.layer}: expected as many times as counts of steps, all 0 or more, and experts of a size, "
                f"found {len(self.cpu_ms)}, {len(self.steps)} and {self.expert_bytes} bytes"
            )

    @property
    def routes(self) -> int:
        """Cold routes of all these steps."""
        return sum(r * n for r, n in enumerate(self.steps, 1))


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
    link_ms: float = 0.0
    """gamma: what the GPU takes meanwhile for its share of each cold expert."""

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
    """G: the work of the GPU that hides the CPU branch, beside its share of cold experts, as long as the waits say.
    Below 0 where they were longer than the CPU branch: the way there and back is waited for too."""
    route_ms: float
    """What a cold route adds to a step: the mean over those that there were of what the step is shorter without it."""
    mean_routes: float = 0.0
    """Cold routes of a step that has any; 0 where that was not kept."""


@dataclass(frozen=True, slots=True)
class LinkShare:
    """What a GPU computes of cold experts in place, as its engine tells it (paper 3.4)."""

    columns: int
    hidden_columns: int
    """Of an expert, of which the GPU computes `columns`."""
    linked: int
    """Cold routes that it computed this share of: not those of experts outside page-locked memory."""
    bytes_per_s: float
    """Measured at load, beside the CPU branch; 0 where it was not."""

    def route_ms(self, expert_bytes: int, routes: int) -> float:
        """gamma: what it takes for a cold route, on average over so many; 0 where nothing is computed in place."""
        if not (self.columns and self.bytes_per_s and routes):
            return 0.0
        share = self.columns / self.hidden_columns * min(1.0, self.linked / routes)
        return 1000 * share * expert_bytes / self.bytes_per_s


def with_link_share(layers: Sequence[LayerTimes], share: LinkShare) -> list[LayerTimes]:
    """The steps of one GPU's layers, of whose cold experts it computes a share."""
    routes = sum(item.routes for item in layers)
    return [replace(item, link_ms=share.route_ms(item.expert_bytes, routes)) for item in layers]


def fit_cpu_branch(layers: Sequence[LayerTimes]) -> tuple[CpuBranch, ...]:
    """The constants of each size of expert, the smallest first; sizes without a measured step are left out.

    Least squares over mean times, each weighing as many steps as it stands for. With one number of cold routes only,
    all of the time is taken for the routes'. Neither constant is negative.
    """
    fits = []
    for size, (steps, total_ms, link_ms) in _by_size(layers).items():
        seen = steps > 0
        if seen.any():
            line = _fit_line(size, np.arange(1.0, steps.size + 1)[seen], steps[seen], total_ms[seen])
            fits.append(replace(line, link_ms=link_ms))
    return tuple(fits)


def fit_overlap(layers: Sequence[LayerTimes], waited_ms: float) -> DecodeOverlap | None:
    """The overlap of steps whose GPUs waited so long for the CPU branch in all; None where it did not work."""
    counted = _by_size(layers)
    busy_ms = float(sum(total_ms.sum() for _, total_ms, _ in counted.values()))
    if busy_ms <= 0:
        return None
    parts = [(fit, counted[fit.expert_bytes][0]) for fit in fit_cpu_branch(layers)]
    steps = np.concatenate([counts for _, counts in parts])
    routes = np.concatenate([np.arange(1.0, counts.size + 1) for _, counts in parts])
    beyond_share_ms = np.concatenate([_beyond_share_ms(fit, np.arange(1.0, n.size + 1)) for fit, n in parts])
    gpu_ms = _gpu_branch_ms(beyond_share_ms, steps, waited_ms)
    # A route adds the difference to a step with one less.
    added_ms = np.concatenate([np.diff(_added_ms(fit, gpu_ms, n.size)) for fit, n in parts])
    return DecodeOverlap(
        steps=int(steps.sum()),
        hidden_share=max(0.0, 1.0 - waited_ms / busy_ms),
        gpu_branch_ms=gpu_ms,
        route_ms=float(np.dot(steps * routes, added_ms) / np.dot(steps, routes)),
        mean_routes=float(np.dot(steps, routes) / steps.sum()),
    )


def cold_cost(
    fits: Sequence[CpuBranch], overlap: DecodeOverlap | None, *, layers: int, k: int, cold_routes: float
) -> ColdCost | None:
    """What cold routes add to a token's time; None where it was not measured.

    Without the overlap each adds beta, over all sizes by their steps: nothing is taken for hidden, nor for lent.

    layers, k    of the model: MoE layers, and routes of a token in each
    cold_routes  of a token while that was measured, as many as the residency set leaves
    """
    steps = sum(fit.steps for fit in fits)
    if steps == 0:
        return None
    weights = [fit.steps / steps for fit in fits]
    if overlap is None:
        beta_ms = float(np.dot(weights, [fit.beta_ms for fit in fits]))
        return ColdCost(layers, tuple(beta_ms * r for r in range(k + 1)), 0.0, BETA_SPREAD) if beta_ms > 0 else None
    layer_ms = np.dot(weights, [_added_ms(fit, overlap.gpu_branch_ms, k) for fit in fits])
    served = 0.0
    if cold_routes > 0 and overlap.mean_routes > 0 and overlap.steps >= COUNTED_STEPS and k > 1:
        served = max(0.0, 1.0 - layers * routes_with_any(overlap.mean_routes, k) / cold_routes)
    return ColdCost.served_by_lent_memory(served, cold_routes, layers, tuple(layer_ms.tolist()), OVERLAP_SPREAD)


def _beyond_share_ms(fit: CpuBranch, routes: Floats) -> Floats:
    """C(r) - gamma r."""
    return fit.alpha_ms + (fit.beta_ms - fit.link_ms) * routes


def _added_ms(fit: CpuBranch, gpu_ms: float, most: int) -> Floats:
    """(most + 1,) what 0, 1, … cold routes add to a layer's step: max(C(r), G + gamma r) - G."""
    routes = np.arange(most + 1.0)
    added: Floats = fit.link_ms * routes + np.maximum(_beyond_share_ms(fit, routes) - gpu_ms, 0.0)
    added[0] = 0.0
    return added


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


def _by_size(layers: Sequence[LayerTimes]) -> dict[int, tuple[Floats, Floats, float]]:
    """Steps with 1, 2, … cold routes, their times together, and mean gamma, by size of expert, the smallest first."""
    found = {}
    for size in sorted({item.expert_bytes for item in layers}):
        group = [item for item in layers if item.expert_bytes == size]
        steps, total_ms = np.zeros((2, max(len(item.steps) for item in group)))
        for item in group:
            steps[: len(item.steps)] += item.steps
            total_ms[: len(item.cpu_ms)] += item.cpu_ms
        routes = sum(item.routes for item in group)
        link_ms = sum(item.link_ms * item.routes for item in group) / routes if routes else 0.0
        found[size] = steps, total_ms, link_ms
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
