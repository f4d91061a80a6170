"""What the routing log knows of one session: how often each expert was selected, by phase. Values only.

A *route* is one token's selection of one expert in one layer (paper 3.1). The numbers are the engine's own counts; no
token and no text is among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SessionRoutes:
    """The routes of one session, or of old sessions that were merged.

    Raises ValueError where the arrays do not fit each other.
    """

    session: str
    """Opaque: a keyed hash or a random number. Never what a client sent."""
    started_at: float
    """Unix seconds of the first request."""
    last_at: float
    """Unix seconds of the end of the latest request."""
    requests: int
    layers: tuple[int, ...]
    """The engine's index of each MoE layer, ascending: one row of the counts each."""
    prefill: NDArray[np.int64]
    """(L, E) routes counted while prompts were read. The last layer counts fewer tokens than the others."""
    decode: NDArray[np.int64]
    """(L, E) routes counted while answers were written."""
    new_tokens: int
    """Prompt tokens that were read, those reused from the KV cache not among them."""
    output_tokens: int
    is_merged: bool = False
    """Whether this stands for many old sessions, whose counts were halved once per merge since."""

    def __post_init__(self) -> None:
        expected = (len(self.layers), self.prefill.shape[1] if self.prefill.ndim == 2 else -1)
        if self.prefill.shape != expected or self.decode.shape != expected:
            raise ValueError(
                f"expected counts of {len(self.layers)} layers by experts in both phases, "
                f"found {self.prefill.shape} and {self.decode.shape}"
            )

    @property
    def n_experts(self) -> int:
        """Experts per layer, the largest where layers differ."""
        return int(self.prefill.shape[1])

    @property
    def tokens(self) -> int:
        """Tokens that went through the model: read and written."""
        return self.new_tokens + self.output_tokens

    @property
    def routes(self) -> int:
        """Routes of both phases."""
        return int(self.prefill.sum()) + int(self.decode.sum())


def total_counts(sessions: Sequence[SessionRoutes]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prefill and decode counts (L, E) summed over sessions of one model.

    Raises ValueError for no sessions, or for sessions whose layers or experts differ.
    """
    if not sessions:
        raise ValueError("expected at least one session, found none")
    first = sessions[0]
    for session in sessions:
        if session.layers != first.layers or session.n_experts != first.n_experts:
            raise ValueError(
                f"expected {len(first.layers)} layers by {first.n_experts} experts in every session, "
                f"found {len(session.layers)} by {session.n_experts}"
            )
    prefill, decode = np.zeros_like(first.prefill), np.zeros_like(first.decode)
    for session in sessions:
        prefill += session.prefill
        decode += session.decode
    return prefill, decode
