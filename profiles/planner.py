"""Which experts to make hot: the most frequently routed ones of each GPU (paper 3.1-3.2, Rule 1, Proposition 3.1).

The layers of a GPU share its memory without per-layer limits. Experts of one size form a size class, within which rank
decides; the memory is split between classes by enumeration (Appendix B, "Slots of two sizes").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from .errors import CapacityError

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

MAX_SPLITS = 1_000_000
"""Splits of one GPU that are enumerated; beyond, classes are filled by routes per byte."""


@dataclass(frozen=True, slots=True)
class ExpertPlaces:
    """Where each MoE layer's experts live and how large they are. Raises CapacityError for inconsistent values."""

    gpu: tuple[int, ...]
    """Per layer, the GPU that computes it, from 0."""
    expert_bytes: tuple[int, ...]
    """Per layer, one expert."""
    n_experts: tuple[int, ...]
    """Per layer."""

    def __post_init__(self) -> None:
        if not len(self.gpu) == len(self.expert_bytes) == len(self.n_experts) > 0:
            raise CapacityError(
                "expected a GPU, a size and a number of experts for each layer, found "
                f"{len(self.gpu)}, {len(self.expert_bytes)} and {len(self.n_experts)}"
            )
        if min(self.gpu) < 0 or min(self.expert_bytes) <= 0 or min(self.n_experts) <= 0:
            raise CapacityError("expected GPUs from 0 and sizes and numbers of experts above 0")

    @property
    def total_bytes(self) -> int:
        """All experts of all layers."""
        return sum(size * count for size, count in zip(self.expert_bytes, self.n_experts, strict=True))

    def hot_bytes(self, hot: Mask) -> int:
        """What the hot experts of a set (L, E) take."""
        return int(np.dot(hot.sum(axis=1), self.expert_bytes))


@dataclass(frozen=True, slots=True)
class _SizeClass:
    """Experts of one size on one GPU, the most routed first; `gained[n]` is what the first n cover."""

    size: int
    layers: NDArray[np.int64]
    experts: NDArray[np.int64]
    gained: Floats


def plan_hot(rho: Floats, places: ExpertPlaces, pool_bytes: Sequence[int]) -> Mask:
    """(L, E) the residency set that covers most routes.

    rho         (L, E) routes to each expert per token; entries beyond a layer's experts are ignored
    pool_bytes  memory for hot experts of each GPU

    Raises CapacityError where shapes differ, a rate is not a number of 0 or more, or a layer's GPU has no entry.
    """
    _require_fit(rho, places, pool_bytes)
    hot = np.zeros(rho.shape, np.bool_)
    for gpu, budget in enumerate(pool_bytes):
        classes = _size_classes(rho, places, gpu)
        for size_class, count in zip(classes, _split(classes, budget), strict=True):
            hot[size_class.layers[:count], size_class.experts[:count]] = True
    return hot


def spread_evenly(places: ExpertPlaces, pool_bytes: Sequence[int]) -> Mask:
    """(L, E) a set without any knowledge: the same share of every layer of a GPU, evenly spaced experts.

    Raises CapacityError where a layer's GPU has no entry in `pool_bytes`.
    """
    width = max(places.n_experts)
    hot = np.zeros((len(places.gpu), width), np.bool_)
    _require_fit(hot.astype(np.float64), places, pool_bytes)
    for gpu, budget in enumerate(pool_bytes):
        layers = [layer for layer, place in enumerate(places.gpu) if place == gpu]
        full = sum(places.expert_bytes[layer] * places.n_experts[layer] for layer in layers)
        counts = {layer: _share(places.n_experts[layer], budget, full) for layer in layers}
        left = budget - sum(places.expert_bytes[layer] * count for layer, count in counts.items())
        for layer in layers:
            # What rounding down has left holds one expert more in some layers.
            if counts[layer] < places.n_experts[layer] and places.expert_bytes[layer] <= left:
                counts[layer] += 1
                left -= places.expert_bytes[layer]
        for layer, count in counts.items():
            hot[layer, [i * places.n_experts[layer] // count for i in range(count)]] = True
    return hot


def moved(before: Mask | None, after: Mask) -> int:
    """Experts that have to be copied into the pool to get from one set to the other."""
    return int(after.sum() if before is None else (after & ~before).sum())


def _share(n_experts: int, budget: int, full: int) -> int:
    return min(n_experts, n_experts * budget // full)


def _require_fit(rho: Floats, places: ExpertPlaces, pool_bytes: Sequence[int]) -> None:
    if rho.ndim != 2 or rho.shape[0] != len(places.gpu) or rho.shape[1] < max(places.n_experts):
        raise CapacityError(
            f"expected rates of {len(places.gpu)} layers by {max(places.n_experts)} experts, found {rho.shape}"
        )
    if not (np.isfinite(rho).all() and (rho >= 0).all()):
        raise CapacityError("expected rates of 0 or more, found others")
    if max(places.gpu) >= len(pool_bytes) or min(pool_bytes) < 0:
        raise CapacityError(f"expected memory of 0 or more for {max(places.gpu) + 1} GPUs, found {list(pool_bytes)}")


def _size_classes(rho: Floats, places: ExpertPlaces, gpu: int) -> list[_SizeClass]:
    classes = []
    on_gpu = [layer for layer, place in enumerate(places.gpu) if place == gpu]
    for size in sorted({places.expert_bytes[layer] for layer in on_gpu}):
        layers = [layer for layer in on_gpu if places.expert_bytes[layer] == size]
        rows = np.concatenate([np.full(places.n_experts[layer], layer) for layer in layers])
        columns = np.concatenate([np.arange(places.n_experts[layer]) for layer in layers])
        routes = rho[rows, columns]
        # Stable: where rates tie, the same set comes out again and nothing is moved for nothing.
        order = np.argsort(-routes, kind="stable")
        gained = np.concatenate([[0.0], np.cumsum(routes[order])])
        classes.append(_SizeClass(size, rows[order], columns[order], gained))
    return classes


def _split(classes: list[_SizeClass], budget: int) -> list[int]:
    """How many experts of each class to keep, as many as fit."""
    if not classes:
        return []
    most = [min(len(item.layers), budget // item.size) for item in classes]
    # The last class takes what the others leave.
    if math.prod(count + 1 for count in most[:-2]) * (most[-2] + 1 if len(most) > 1 else 1) > MAX_SPLITS:
        return _by_density(classes, budget)
    best, found = -1.0, most
    for leading in product(*(range(count + 1) for count in most[:-2])):
        left = budget - sum(count * item.size for count, item in zip(leading, classes, strict=False))
        if left < 0:
            continue
        covered = sum(item.gained[count] for count, item in zip(leading, classes, strict=False))
        tail, routes = _split_two(classes[len(leading) :], left)
        if covered + routes > best:
            best, found = covered + routes, [*leading, *tail]
    return found


def _split_two(classes: list[_SizeClass], budget: int) -> tuple[list[int], float]:
    """The best split between one or two classes, and the routes it covers."""
    last = classes[-1]
    if len(classes) == 1:
        count = min(len(last.layers), budget // last.size)
        return [count], float(last.gained[count])
    first = classes[0]
    counts = np.arange(min(len(first.layers), budget // first.size) + 1)
    rest = np.minimum(len(last.layers), (budget - counts * first.size) // last.size)
    covered = first.gained[counts] + last.gained[rest]
    best = int(np.argmax(covered))
    return [int(counts[best]), int(rest[best])], float(covered[best])


def _by_density(classes: list[_SizeClass], budget: int) -> list[int]:
    """Fill by routes per byte, skipping what does not fit: within one expert's routes of the best split."""
    owner = np.concatenate([np.full(len(item.layers), i) for i, item in enumerate(classes)])
    density = np.concatenate([np.diff(item.gained) / item.size for item in classes])
    counts, closed = [0] * len(classes), [False] * len(classes)
    for index in owner[np.argsort(-density, kind="stable")]:
        if closed[index]:
            continue
        if classes[index].size > budget:
            closed[index] = True
            continue
        budget -= classes[index].size
        counts[index] += 1
    return counts
