"""What engines with llama.cpp's kind of interface have in common: passes behind a context that is kept."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from benchmarks.peers.protocol import Tokens


class TimedPasses(ABC):
    """Implements `protocol.Engine` but for its facts."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._depth = 0

    @abstractmethod
    def _pass(self, tokens: Tokens) -> None:
        """Read tokens behind what was read before; returns when the last pass is done. RuntimeError if one fails."""

    @abstractmethod
    def _rewind(self, depth: int) -> None:
        """Forget all tokens from this position on."""

    @abstractmethod
    def _last_logits(self) -> Any:
        """A pointer to the outputs of the last token."""

    def _timed(self, tokens: Tokens) -> float:
        started = time.perf_counter()
        self._pass(tokens)
        return (time.perf_counter() - started) * 1000

    def read_context(self, tokens: Tokens) -> int:
        self._pass(tokens)
        self._depth = len(tokens)
        return int(np.ctypeslib.as_array(self._last_logits(), (self._vocabulary,)).argmax())

    def prefill(self, tokens: Tokens) -> float:
        elapsed = self._timed(tokens)
        self._rewind(self._depth)
        return elapsed

    def decode(self, tokens: Tokens) -> list[float]:
        steps = [self._timed(tokens[i : i + 1]) for i in range(len(tokens))]
        self._rewind(self._depth)
        return steps

    def turn(self, reused: int, new: Tokens, output: Tokens) -> tuple[float, float]:
        self._rewind(reused)
        first = self._timed(new)
        return first, sum(self._timed(output[i : i + 1]) for i in range(len(output) - 1))
