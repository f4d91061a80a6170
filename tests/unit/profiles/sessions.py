"""Sessions with known routing for tests of planning."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ostinatod.profiles.planner import ExpertPlaces
from ostinatod.profiles.route_log import SessionRoutes

LAYERS, EXPERTS, K = 3, 12, 2
PLACES = ExpertPlaces((0,) * LAYERS, (1,) * LAYERS, (EXPERTS,) * LAYERS)


def session(
    decode: ArrayLike, *, at: float = 0.0, prefill: ArrayLike | None = None, tokens: int = 1000, merged: bool = False
) -> SessionRoutes:
    """A session with the given counts (L, E), all of `tokens` written."""
    counts = np.asarray(decode, np.int64)
    read = np.zeros_like(counts) if prefill is None else np.asarray(prefill, np.int64)
    return SessionRoutes(
        session=f"session at {at:g}",
        started_at=at,
        last_at=at,
        requests=1,
        layers=tuple(range(counts.shape[0])),
        prefill=read,
        decode=counts,
        new_tokens=tokens if read.any() else 0,
        output_tokens=tokens if counts.any() else 0,
        is_merged=merged,
    )


def favouring(favourites: range, *, at: float = 0.0, times: int = 9) -> SessionRoutes:
    """A session that routes `times` as often to some experts of every layer as to the others."""
    counts = np.full((LAYERS, EXPERTS), 10)
    counts[:, list(favourites)] *= times
    return session(counts, at=at)


def hot(experts: range) -> NDArray[np.bool_]:
    """These experts of every layer."""
    mask = np.zeros((LAYERS, EXPERTS), np.bool_)
    mask[:, list(experts)] = True
    return mask
