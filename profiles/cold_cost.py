"""What the cold routes of a token add to its time, by their number (paper, Equation 1).

A step takes what its layers take, and a layer's cost is not proportional to its cold routes: the first brings the CPU
branch into play. So the time to expect of a residency set is the sum over layers of E[cost(r)], where each of a token's
k experts in a layer is cold independently of the others, r binomial.

Experts that are lent memory while a request decodes (paper 3.4, `borrowing`) are served from there: fewer routes are
computed than the set leaves cold. What is lent are the experts that repeat, and a set that leaves few routes cold
leaves those that repeat least. On recorded sessions the share of the cold routes that lent memory serves goes with the
square root of their number, from one set to another, and with that of the memory lent; docs/learning.md has the
figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import CostModelError

Floats = NDArray[np.float64]

MOST_SERVED = 0.6
"""Share of the cold routes that lent memory is taken to serve, at most; below 2/3 fewer cold routes never cost more."""


@dataclass(frozen=True, slots=True)
class ColdCost:
    """Of one model with one engine. Milliseconds. Raises CostModelError for values that no machine has."""

    layers: int
    layer_ms: tuple[float, ...]
    """What a layer adds to a step when 0, 1, … k of its routes are cold and computed."""
    lent: float
    """Share of a token's cold routes that lent memory serves, over the square root of their number."""
    spread: float
    """Standard deviation of a step's true cost over this one: how firmly it is believed."""

    def __post_init__(self) -> None:
        is_sound = self.layers > 0 and len(self.layer_ms) > 1 and min(self.layer_ms) == self.layer_ms[0] == 0
        if not is_sound or self.lent < 0 or self.spread <= 0:
            raise CostModelError(
                "expected layers, a layer's times from 0 for no cold route, lent of 0 or more and a spread above 0, "
                f"found {self}"
            )

    @classmethod
    def served_by_lent_memory(
        cls, served: float, cold_routes: float, layers: int, layer_ms: tuple[float, ...], spread: float
    ) -> ColdCost:
        """Where lent memory serves this share of so many cold routes per token."""
        lent = min(served, MOST_SERVED) / math.sqrt(cold_routes) if served > 0 else 0.0
        return cls(layers, layer_ms, lent, spread)

    def with_memory_lent(self, ratio: float) -> ColdCost:
        """Where so many times the memory is lent."""
        return replace(self, lent=self.lent * math.sqrt(ratio))

    def computed(self, cold_routes: ArrayLike, usual: ArrayLike | None = None) -> Floats:
        """Of a token's cold routes by the residency set, those that lent memory does not serve.

        usual  how many the set leaves on average, which decides on the share; as many as `cold_routes` if not given
        """
        cold = np.maximum(np.asarray(cold_routes, np.float64), 0.0)
        of_set = cold if usual is None else np.maximum(np.asarray(usual, np.float64), 0.0)
        return cold * (1.0 - np.minimum(self.lent * np.sqrt(of_set), MOST_SERVED))

    def ms(self, cold_routes: ArrayLike, usual: ArrayLike | None = None) -> Floats:
        """What so many cold routes per token are expected to add to its time; `usual` as for `computed`."""
        k = len(self.layer_ms) - 1
        share = np.minimum(self.computed(cold_routes, usual) / (self.layers * k), 1.0)[..., None]
        routes = np.arange(k + 1)
        ways = np.array([math.comb(k, r) for r in routes], np.float64)
        probability = ways * share**routes * (1.0 - share) ** (k - routes)
        return np.asarray(self.layers * (probability @ np.asarray(self.layer_ms)))


def routes_with_any(mean: float, k: int) -> float:
    """Cold routes of a layer per token, where those of its steps that have any have so many on average.

    The k routes of a token are cold independently: k q / (1 - (1 - q)^k) is `mean`, of which k q is returned.
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        q = (low + high) / 2
        if k * q < mean * -math.expm1(k * math.log1p(-q)):
            low = q
        else:
            high = q
    return k * low
