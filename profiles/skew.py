"""Whether a model's routing is skewed enough for learning to help, against a router that selects uniformly.

Even uniform routes look skewed when the experts are ranked by the very counts they are judged by. The null hypothesis
is therefore simulated: as many routes, drawn from a multinomial with equal probabilities, ranked and judged alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

USEFUL_GAIN = 0.05
"""Coverage above a random set's from which learning is worth its moves."""
_DRAWS = 64
_SEED = 20261108
_MAX_SIMULATED_ROUTES = 1 << 20
"""More routes than this only make the null's own gain smaller than any that counts."""


@dataclass(frozen=True, slots=True)
class Skew:
    """What a set of the most frequent experts gains over a random one of the same size."""

    gain: float
    """Coverage gained on the counted routes."""
    null_gain: float
    """The most that uniform routing gained in `_DRAWS` simulations of as many routes."""
    useful: bool
    sentence: str


def check_skew(counts: Counts, hot_share: float) -> Skew:
    """Judge the counts (L, E) of one model for sets that hold `hot_share` of its experts, 0 to 1.

    Raises ValueError for a share outside that.
    """
    if not 0 <= hot_share <= 1:
        raise ValueError(f"expected a share from 0 to 1, found {hot_share}")
    if not counts.any():
        return Skew(0.0, 0.0, False, "No routes have been counted yet, so there is nothing to learn from.")
    n_hot = round(hot_share * counts.size)
    if n_hot in (0, counts.size):
        what = "no expert fits" if n_hot == 0 else "every expert fits"
        return Skew(0.0, 0.0, False, f"With this memory {what}, so there is nothing to choose.")
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    gain = _gain(shares, n_hot)
    null = _null_gain(counts, n_hot)
    useful = gain >= USEFUL_GAIN and gain > null
    return Skew(gain, null, useful, _sentence(gain, null, hot_share, useful))


def _gain(shares: NDArray[np.float64], n_hot: int) -> float:
    n_layers = max(1, int(np.count_nonzero(shares.sum(axis=1))))
    kept = np.sort(shares, axis=None)[::-1][:n_hot].sum()
    return float(kept / n_layers - n_hot / shares.size)


def _null_gain(counts: Counts, n_hot: int) -> float:
    draw = np.random.default_rng(_SEED)
    n_experts = counts.shape[1]
    routes = np.minimum(counts.sum(axis=1), _MAX_SIMULATED_ROUTES)
    gains = []
    for _ in range(_DRAWS):
        drawn = draw.multinomial(routes, np.full(n_experts, 1.0 / n_experts))
        gains.append(_gain(drawn / np.maximum(routes, 1)[:, None], n_hot))
    return max(gains)


def _sentence(gain: float, null: float, hot_share: float, useful: bool) -> str:
    learned = hot_share + gain
    if useful:
        return f"The most used {hot_share:.0%} of the experts take {learned:.0%} of the routes; keeping them hot helps."
    if gain <= null:
        return "So far the routes look no different from chance, so a learned set would not help yet."
    return (
        f"The most used {hot_share:.0%} of the experts take only {learned:.0%} of the routes, so learning cannot help "
        "much; memory is better lent to experts while a request needs them."
    )
