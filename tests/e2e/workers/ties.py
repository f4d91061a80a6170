"""When two most likely tokens say the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NEAR_TIE = 4.0
"""Two logits are nearly tied when they differ by less than this many standard errors, of the error that is allowed."""


def near_ties(stock: NDArray[np.float32], allowed: float) -> NDArray[np.bool_]:
    """Rows whose two largest outputs are nearly tied, given the NMSE that is allowed."""
    top = np.partition(stock, -2, axis=1)[:, -2:].astype(np.float64)
    error = np.sqrt(allowed * np.mean(stock.astype(np.float64) ** 2))
    tied: NDArray[np.bool_] = top[:, 1] - top[:, 0] < NEAR_TIE * error
    return tied


def same_or_tied(values: NDArray[np.float32], stock: NDArray[np.float32], allowed: float) -> bool:
    """Whether every row has the same largest output, or nearly tied ones."""
    same = values.argmax(axis=1) == stock.argmax(axis=1)
    return bool((same | near_ties(stock, allowed)).all())


def same_share(values: NDArray[np.float32], stock: NDArray[np.float32]) -> float:
    """Share of the rows that have the same largest output."""
    return float((values.argmax(axis=1) == stock.argmax(axis=1)).mean())
