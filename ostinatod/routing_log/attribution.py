"""Whose routes an engine's counters moved by. Pure; one ledger per engine.

The counters are the engine's, not a request's, and are read when a request has ended. A request that was alone takes
all that was counted since the reading before. With others in flight it takes its share by tokens and leaves the rest to
them: of the prefill counts as many as the prompt tokens it read, of the decode counts as many as the tokens it wrote. A
token counts k routes in every layer (fewer in the last layer of a prefill), so counts tell how many tokens they stand
for. Shares are rounded so that the total stays exact: what all requests take is what was counted.

Within a share the experts are those of everything that was counted meanwhile: two conversations at once are blended,
and their sum is right. A request whose tokens are not known, a cancelled one, takes nothing while others are in flight;
the one that ends last takes what is left.
"""

from __future__ import annotations

import numpy as np

from ostinatod.routing_log.counts import Counts, RouteCounts


class EngineLedger:
    """What one engine has counted and no request has taken yet."""

    def __init__(self) -> None:
        self._last: RouteCounts | None = None
        self._open: RouteCounts | None = None

    def restarted(self) -> None:
        """The engine died: what is open was counted for requests that died with it, and its counters begin at zero."""
        self._last = self._open = None

    def read(self, counters: RouteCounts) -> None:
        """The counters as they are now. Counters that went back are those of a new engine."""
        counted = counters
        if self._last is not None and counters.fits(self._last):
            moved = counters.minus(self._last)
            if not (moved.prefill.size and (int(np.min(moved.prefill)) < 0 or int(np.min(moved.decode)) < 0)):
                counted = moved
        self._last = counters
        fits = self._open is not None and self._open.fits(counted)
        self._open = self._open.plus(counted) if self._open is not None and fits else counted

    def take_all(self) -> RouteCounts | None:
        """Everything that is open; None if the counters were never read."""
        taken, self._open = self._open, None
        if taken is None and self._last is not None:
            zeros = np.zeros_like(self._last.prefill)
            return RouteCounts(self._last.layers, zeros, zeros.copy())
        return taken

    def take_share(self, new_tokens: int | None, output_tokens: int | None, k: int) -> RouteCounts | None:
        """The share of a request that read `new_tokens` and wrote `output_tokens`; None if nothing is known."""
        if self._open is None:
            return self.take_all()
        prefill = _share(self._open.prefill, new_tokens, k)
        decode = _share(self._open.decode, output_tokens, k)
        taken = RouteCounts(self._open.layers, prefill, decode)
        self._open = self._open.minus(taken)
        return taken


def counted_tokens(counts: Counts, k: int) -> float:
    """How many tokens counts (L, E) stand for, when each counts k routes per layer: the layer that saw most."""
    return float(np.max(counts.sum(axis=1))) / k if counts.size and k > 0 else 0.0


def _share(counts: Counts, tokens: int | None, k: int) -> Counts:
    counted = counted_tokens(counts, k)
    if not tokens or not counted:
        return np.zeros_like(counts)
    part = min(1.0, tokens / counted)
    # Rounding running totals instead of cells: no cell takes more than it has, and the whole takes its share exactly.
    totals = np.floor(np.cumsum(counts, dtype=np.float64) * part + 1e-9).astype(np.int64)
    share: Counts = np.diff(totals, prepend=0).reshape(counts.shape)
    return np.minimum(share, counts)
