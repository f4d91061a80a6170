"""Tokens to read in benchmarks that replay no sessions: text of recorded ones, or random tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from agent_sessions import read_sessions
from numpy.typing import NDArray


class SessionText:
    """Tokens to read, from the start again where they end.

    sessions  a file of `agent_sessions.py`; random tokens where it is None
    part      "development" or "held-out"
    """

    def __init__(self, sessions: Path | None, part: str, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._tokens: NDArray[np.int32] | None = None
        if sessions:
            chosen = [session for session in read_sessions(sessions) if session.part == part]
            pieces = [piece for session in chosen for turn in session.turns for piece in (turn.new, turn.answer)]
            self._tokens = np.concatenate(pieces)

    def at(self, position: int, n: int) -> list[int]:
        """The n tokens from a position on; the same for all who ask."""
        found: NDArray[np.integer[Any]]
        if self._tokens is None:
            found = np.random.default_rng([17, position]).integers(0, self._n_vocab, n)
        else:
            found = self._tokens[np.arange(position, position + n) % len(self._tokens)]
        return [int(token) for token in found]
