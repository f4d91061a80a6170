"""Route counts and the residency set joined: what is hot, what is routed to, and how well the two agree (Section 3.1).

Coverage is the share of routes that go to hot experts. It is computed from the engine's counts since the model was
loaded and the set in use now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ostinatod.client_dashboard_values import Part, Residency, Routes, Unavailable

Phase = Literal["all", "prefill", "decode"]

PHASES: tuple[Phase, ...] = ("all", "prefill", "decode")


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """Layers times experts of one model.

    prefill, decode  (L, E) routes; all 0 where routes are not counted
    hot              (L, E) True where the expert is hot; None where the residency set is not known
    """

    layers: tuple[int, ...]
    prefill: NDArray[np.int64]
    decode: NDArray[np.int64]
    hot: NDArray[np.bool_] | None
    routes_missing: Unavailable | None = None
    residency_missing: Unavailable | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and experts per layer."""
        return self.prefill.shape[0], self.prefill.shape[1]

    def counts(self, phase: Phase) -> NDArray[np.int64]:
        """(L, E) routes of a phase."""
        if phase == "all":
            return self.prefill + self.decode
        return self.prefill if phase == "prefill" else self.decode

    def coverage(self, phase: Phase) -> float | None:
        """Share of the phase's routes that go to hot experts; None without counts or set."""
        if self.hot is None:
            return None
        counts = self.counts(phase)
        total = int(counts.sum())
        return int(counts[self.hot].sum()) / total if total else None

    def hot_share(self) -> float | None:
        """Share of the experts that are hot: the coverage that even routing would give."""
        return None if self.hot is None or not self.hot.size else float(self.hot.mean())


def join(routes: Part[Routes], residency: Part[Residency]) -> Part[Experts]:
    """Counts and set of one model; what both lack is Unavailable, what one lacks is said in the result."""
    if isinstance(residency, Residency) and not any(entry.hot for entry in residency.layers):
        residency = Unavailable(residency.reason or "no residency set is in use")
    if isinstance(routes, Unavailable):
        return routes if isinstance(residency, Unavailable) else _without_counts(routes, residency)
    if not routes.prefill.size:
        return Unavailable("the model has no experts")
    if isinstance(residency, Unavailable):
        return Experts(routes.layers, routes.prefill, routes.decode, hot=None, residency_missing=residency)
    return Experts(routes.layers, routes.prefill, routes.decode, hot=_mask(routes, residency))


def _mask(routes: Routes, residency: Residency) -> NDArray[np.bool_]:
    n_layers, n_experts = routes.prefill.shape
    hot = np.zeros((n_layers, n_experts), dtype=np.bool_)
    row_of = {layer: row for row, layer in enumerate(routes.layers)}
    for entry in residency.layers:
        row = row_of.get(entry.layer)
        if row is not None:
            hot[row, [expert for expert in entry.hot if 0 <= expert < n_experts]] = True
    return hot


def _without_counts(missing: Unavailable, residency: Residency) -> Experts:
    layers = tuple(entry.layer for entry in residency.layers)
    none = np.zeros((len(layers), max(entry.n_experts for entry in residency.layers)), dtype=np.int64)
    hot = _mask(Routes(layers, none, none), residency)
    return Experts(layers, none, none, hot, routes_missing=missing)
