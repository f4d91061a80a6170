"""What every engine that is compared must do, and what is told about a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
Options = dict[str, Any]
"""Settings of an engine by its own names, as JSON."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is timed, the same for every engine."""

    model: str
    """GGUF file."""
    depth: int = 4096
    """Tokens of context that every timing starts behind."""
    lengths: tuple[int, ...] = (64, 128, 249, 511, 1024, 2048)
    """New tokens of the prefills."""
    decode_tokens: int = 96
    repeats: int = 3
    """Timings of each length; one more comes before them and does not count."""
    threads: int = 16
    """CPU threads."""
    vocabulary: int = 32000
    seed: int = 17
    sessions: str = ""
    """File of sessions that are replayed after everything else is timed."""
    session_tokens: int = 0
    """Of the longest session."""

    @property
    def n_ctx(self) -> int:
        """Positions that an engine must have room for."""
        return max(self.depth + max(*self.lengths, self.decode_tokens + WARM_UP), self.session_tokens) + 64

    def as_json(self) -> dict[str, Any]:
        """As `from_json` reads it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Work:
        """Of a `Work` that went through JSON."""
        return cls(**{**value, "lengths": tuple(value["lengths"])})


WARM_UP = 16
"""Decoded tokens that do not count."""


class Engine(Protocol):
    """A loaded model."""

    def read_context(self, tokens: Tokens) -> int:
        """Make these the context that prefills and decoding start behind; returns the likeliest next token."""

    def prefill(self, tokens: Tokens) -> float:
        """Milliseconds from the request to its first output token, with `tokens` behind the context."""

    def decode(self, tokens: Tokens) -> list[float]:
        """Milliseconds per output token behind the context, one for each of `tokens`; an engine may choose its own."""

    def turn(self, reused: int, new: Tokens, output: Tokens) -> tuple[float, float]:
        """Milliseconds to the first output token and of all others, of a request that keeps `reused` tokens of the
        context, reads `new` and emits as many tokens as `output`, of which the last one is not read; an engine may
        choose its own. A session begins with `reused` 0.
        """

    def facts(self) -> dict[str, Any]:
        """What the engine says about itself: versions, graph splits, counters."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a search needs to know of a model file (bytes)."""

    layers: int
    """That have experts."""
    layer_expert_bytes: int
    """Of all experts of one layer, the largest one."""
    experts: int
    """Per layer."""
    other_bytes: int


@dataclass(frozen=True, slots=True)
class Peer:
    """How one engine is opened and searched."""

    name: str
    open: Callable[[Work, Options], Engine]
    """In the child process; imports the engine."""
    least: Callable[[ModelShape], Options]
    """What uses the least GPU memory and still computes on the GPU."""
    fitted: Callable[[ModelShape, Options, int, int], Options]
    """Options of `least`, the GPU memory they used and the memory allowed (bytes) to the most that fits."""
    choices: Mapping[str, tuple[Any, ...]]
    """Options tried one after another; the first of each is where the search starts."""
    environment: Mapping[str, str] = field(default_factory=dict)
    first_s: float = 0.0
    """Seconds that its first run may take beyond the limit: what it compiles then and keeps."""
