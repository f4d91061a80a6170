"""What a residency set would have served: coverage, cold routes, and the best set in hindsight. Arrays only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .rates import Forgetting, row_shares, session_shares
from .route_log import SessionRoutes

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Share of routes that a residency set serves, 0 to 1: means over sessions, each layer weighing the same."""

    overall: float
    """Phases weighed as in planning."""
    prefill: float | None
    decode: float | None
    """None where no route of the phase was counted."""

    def cold_routes_per_token(self, n_layers: int, k: int) -> float:
        """M: expected cold routes of one decode step over all layers (of any step where decode was not counted)."""
        share = self.overall if self.decode is None else self.decode
        return n_layers * k * (1.0 - share)


def covered_share(shares: Floats, hot: Mask) -> float:
    """Mean over the layers with routes of what the hot experts' shares (L, E) add up to; 0 without any route."""
    used = shares.sum(axis=1) > 0
    if not used.any():
        return 0.0
    return float(np.where(hot, shares, 0.0).sum(axis=1)[used].mean())


def coverage(sessions: Sequence[SessionRoutes], hot: Mask, forgetting: Forgetting) -> Coverage:
    """Coverage of a set over sessions, each weighing the same. Raises ValueError without sessions."""
    if not sessions:
        raise ValueError("expected at least one session, found none")
    phases: dict[str, float | None] = {}
    for phase in ("prefill", "decode"):
        counted = [counts for session in sessions if (counts := getattr(session, phase)).any()]
        shares = [covered_share(row_shares(counts), hot) for counts in counted]
        phases[phase] = float(np.mean(shares)) if shares else None
    overall = [covered_share(session_shares(session, forgetting), hot) for session in sessions]
    return Coverage(float(np.mean(overall)), phases["prefill"], phases["decode"])


def random_coverage(hot: Mask) -> float:
    """Coverage to expect of a random set of the same size: its share of all experts."""
    return float(hot.mean())


def mean_shares(sessions: Sequence[SessionRoutes], forgetting: Forgetting) -> Floats:
    """(L, E) what sessions route, each weighing the same: planning by it gives the best set in hindsight."""
    return row_shares(np.mean([session_shares(session, forgetting) for session in sessions], axis=0))


def cold_routes(rho: Floats, hot: Mask) -> Floats:
    """(L,) mu: expected cold routes of each layer per token, for rates (L, E) and a set (paper 3.2)."""
    cold: Floats = np.where(hot, 0.0, rho).sum(axis=1)
    return cold


def step_cold_routes(steps: NDArray[np.integer], hot: Mask) -> NDArray[np.int64]:
    """(N, L) cold routes of each layer in decode steps that selected `steps` (N, L, k)."""
    layers = np.arange(hot.shape[0])[None, :, None]
    counts: NDArray[np.int64] = (~hot[layers, steps]).sum(axis=2)
    return counts


def expectations(cold: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """(L,) mu and (L,) q of a trace's cold routes (N, L): joint selections enter q as they happened."""
    return cold.mean(axis=0), (cold > 0).mean(axis=0)
